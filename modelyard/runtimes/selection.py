"""Which runtime serves a model: a ranked list with a verdict, and every reason, for every runtime. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import NamedTuple

from modelyard.objects import LONGEST_PROBLEM, counted, cut, few, listed, shown
from modelyard.runtimes.accelerators import AcceleratorClass, place
from modelyard.runtimes.matching import differences, label, matches
from modelyard.runtimes.values import ModelKind, ModelView, Runtime, SupportedFormat, Wishes

NAME_IN_MESSAGE = 20
"""Runtimes that a message names at most; a ranking has them all."""
SERVING_RUNTIME, CLUSTER_SERVING_RUNTIME = "ServingRuntime", "ClusterServingRuntime"
NO_RUNTIME = "NoSupportingRuntime"
"""Code of a ranking's problem: none of the runtimes can serve the model."""
_ENTRIES_SAID = 10
_WANTED = re.compile(r"(?P<head>.* (?:runtime|requires) )(?P<value>'.*')")
"""A difference, and in it the value of the runtime."""


class RejectionReason(NamedTuple):
    """Why a runtime, or a model, cannot be used: one CamelCase word for programs, and a sentence.

    ``formats`` are the entries of which none is for ``kind``: what differs is only worked out where somebody reads it.
    """

    code: str
    text: str
    formats: tuple[SupportedFormat, ...] = ()
    kind: ModelKind | None = None

    @property
    def message(self) -> str:
        if self.kind is None:
            return self.text
        said = "; ".join(few(_differences(self.formats, self.kind), _ENTRIES_SAID))
        return cut(f"model format {shown(label(self.kind))} {self.text}: {said}", LONGEST_PROBLEM)


def _differences(formats: Iterable[SupportedFormat], kind: ModelKind) -> list[str]:
    """What differs, once for all entries in which the same does; those that differ in yet more say nothing new."""
    alike: dict[tuple[str, ...], list[dict[str, None]]] = {}
    for entry in formats:
        found = tuple(cut(text, LONGEST_PROBLEM) for text in differences(entry, kind))
        split = [_WANTED.fullmatch(text) for text in found]
        heads = tuple(one["head"] if one else text for one, text in zip(split, found, strict=True))
        values = alike.setdefault(heads, [{} for _ in heads])
        for one, known in zip(split, values, strict=True):
            known.update({one["value"]: None} if one else {})
    return [
        ", ".join(head + _either(list(known)) for head, known in zip(heads, values, strict=True))
        for heads, values in alike.items()
        if not any(set(other) < set(heads) for other in alike)
    ]


def _either(values: Sequence[str]) -> str:
    more = len(values) - _ENTRIES_SAID
    return " or ".join((*values[:_ENTRIES_SAID], *([f"{more} more"] if more > 0 else [])))


class RuntimeVerdict(NamedTuple):
    """Verdict on a runtime, usable without ``reasons``. ``priority`` and ``weight`` are the matching entry's."""

    runtime: Runtime
    reasons: tuple[RejectionReason, ...]
    notes: tuple[str, ...] = ()
    entry: SupportedFormat | None = None
    priority: int = 1
    weight: int = 0
    accelerator: str = ""
    type_match: int = 0
    """1 where the entry names the type of the model, 0 where it names none, -1 where it names another one."""

    @property
    def accepted(self) -> bool:
        return not self.reasons

    @property
    def why(self) -> str:
        return "; ".join(reason.message for reason in self.reasons)


@dataclass(frozen=True, slots=True)
class Ranking:
    """All runtimes for one model: those that can serve it, best first, then the others by scope and name.

    ``chosen`` is the one to use. ``better`` is what would be chosen for a new service, where a live one stays with
    what it has. ``problem`` says why none is chosen, in words that are the same for the same input.
    """

    model: ModelView
    verdicts: tuple[RuntimeVerdict, ...]
    chosen: RuntimeVerdict | None = None
    better: RuntimeVerdict | None = None
    problem: RejectionReason | None = None

    @property
    def accepted(self) -> tuple[RuntimeVerdict, ...]:
        return tuple(verdict for verdict in self.verdicts if verdict.accepted)


def select(
    model: ModelView,
    runtimes: Iterable[Runtime],
    *,
    namespace: str = "",
    wishes: Wishes | None = None,
    named: str = "",
    named_kind: str = "",
    current: tuple[str, str] | None = None,
    classes: Mapping[str, AcceleratorClass] | None = None,
) -> Ranking:
    """Rank the runtimes for a model in a namespace; those of other namespaces are left out.

    ``named`` is the runtime that a service names, ``named_kind`` the kind that it says (``named_keys``): such a runtime
    need not be selectable otherwise. ``current`` is the (namespace, name) that a live service runs on: it stays while
    compatible. ``classes`` are the cluster's AcceleratorClasses by name; ``None``, not served: memory is not checked.
    """
    here = namespace or model.namespace
    seen = [runtime for runtime in runtimes if runtime.namespace in ("", here)]
    wishes = wishes or Wishes()
    there = {runtime.key for runtime in seen}
    keys = named_keys(named, here, named_kind)
    kept = next((key for key in keys if key in there), None) if named else current
    verdicts = [_judge(model, one, wishes, classes, asked=one.key == kept) for one in seen]
    verdicts.sort(key=lambda verdict: _order(verdict, model.size))
    by_key = {verdict.runtime.key: verdict for verdict in verdicts}
    if problem := _unusable(model):
        return Ranking(model, tuple(verdicts), problem=problem)
    if named:
        return _by_name(model, verdicts, by_key.get(kept) if kept else None, (named, named_kind), here)
    # The one that a service runs on may stay although it may no longer be chosen without being named.
    best = next((v for v in verdicts if v.accepted and v.entry is not None and v.entry.auto_select), None)
    live = by_key.get(kept) if kept else None
    if live is not None and live.accepted:
        is_better = best is not None and verdicts.index(best) < verdicts.index(live)
        return Ranking(model, tuple(verdicts), live, best if is_better else None)
    return Ranking(model, tuple(verdicts), best, problem=None if best else _none(model, verdicts, here))


def named_keys(name: str, namespace: str, kind: str = "") -> tuple[tuple[str, str], ...]:
    """Return the keys (namespace, name) that a name means, in the order in which they are looked up.

    ClusterServingRuntime allows both: API servers with the published schema write it into services that name no kind.
    """
    own, cluster = (namespace, name), ("", name)
    return {SERVING_RUNTIME: (own,), CLUSTER_SERVING_RUNTIME: (cluster, own)}.get(kind, (own, cluster))


def not_found(name: str, namespace: str, kind: str = "") -> str:
    """Say that no runtime has a name that a service gives."""
    if kind == SERVING_RUNTIME:
        return f"ServingRuntime {name} not found in namespace {namespace or 'default'}"
    return f"runtime {name} not found in namespace {namespace or 'default'} or at cluster scope"


def _unusable(model: ModelView) -> RejectionReason | None:
    if model.disabled:
        return RejectionReason("ModelDisabled", f"specified base model {model.name} is disabled")
    if model.problem and model.kind.format is None:
        return RejectionReason("ModelInvalid", f"model {model.name} cannot be read: {model.problem}")
    if model.kind.format is None:
        text = f"model {model.name} has no modelFormat yet - wait until its files were read, or write spec.modelFormat"
        return RejectionReason("MetadataPending", text)
    return None


def _by_name(
    model: ModelView,
    verdicts: Sequence[RuntimeVerdict],
    verdict: RuntimeVerdict | None,
    reference: tuple[str, str],
    namespace: str,
) -> Ranking:
    named, kind = reference
    if verdict is None:
        problem = RejectionReason("RuntimeNotFound", not_found(named, namespace, kind))
    elif verdict.accepted:
        return Ranking(model, tuple(verdicts), verdict)
    elif verdict.runtime.disabled:
        problem = RejectionReason("RuntimeDisabled", f"{verdict.runtime.scope} runtime {named} is disabled")
    else:
        text = cut(f"runtime {named} does not support model {model.name}: {verdict.why}", LONGEST_PROBLEM)
        problem = RejectionReason("RuntimeNotSupported", text)
    return Ranking(model, tuple(verdicts), problem=problem)


def _none(model: ModelView, verdicts: Sequence[RuntimeVerdict], namespace: str) -> RejectionReason:
    inside = sum(bool(verdict.runtime.namespace) for verdict in verdicts)
    why = [
        f"{verdict.runtime.name} ({cut(verdict.why, LONGEST_PROBLEM // 4)})" for verdict in verdicts[:NAME_IN_MESSAGE]
    ]
    why += [f"and {len(verdicts) - NAME_IN_MESSAGE} more"] if len(verdicts) > NAME_IN_MESSAGE else []
    fmt = model.kind.format.name if model.kind.format else "unknown"
    where = f" in namespace {namespace}" if namespace else ""
    text = f"no runtime found to support model {model.name} with format {fmt}{where}. "
    checked = counted(len(verdicts), "runtime")
    text += f"Checked {checked} ({inside} namespace-scoped, {len(verdicts) - inside} cluster-scoped)"
    if why:
        text += ". Excluded runtimes: " + "; ".join(why)
    return RejectionReason(NO_RUNTIME, text)


def _order(verdict: RuntimeVerdict, size: Decimal | None) -> tuple[object, ...]:
    """Total: two runtimes of one scope have different names. Each part is only reached where those before are equal."""
    runtime = verdict.runtime
    scope = 0 if runtime.namespace else 1
    if not verdict.accepted:
        return (1, scope, runtime.name)
    fitting = (1, Decimal(0))
    if size is not None and runtime.ranged:
        # A range that is open at one end is wider than any other.
        ends = runtime.smallest, runtime.largest
        width = ends[1] - ends[0] if ends[0] is not None and ends[1] is not None else Decimal("Infinity")
        fitting = (0, width)
    return (0, scope, -verdict.priority, *fitting, -verdict.type_match, -verdict.weight, runtime.name)


def _judge(
    model: ModelView, runtime: Runtime, wishes: Wishes, classes: Mapping[str, AcceleratorClass] | None, asked: bool
) -> RuntimeVerdict:
    reasons: list[RejectionReason] = []
    notes = list(runtime.remarks)
    if runtime.disabled:
        reasons.append(RejectionReason("RuntimeDisabled", "runtime is disabled"))
    if runtime.problem:
        reasons.append(RejectionReason("RuntimeInvalid", f"runtime cannot be read: {runtime.problem}"))
    if missing := [one for one in wishes.classes if one not in runtime.classes]:
        text = f"does not support the required accelerator class {', '.join(missing)}"
        text += f" (it lists {', '.join(few(runtime.classes))})" if runtime.classes else " (it lists none)"
        reasons.append(RejectionReason("AcceleratorClassNotSupported", text))
    matching = [entry for entry in runtime.formats if matches(entry, model.kind)]
    if not runtime.formats and not runtime.problem:
        reasons.append(RejectionReason("NoSupportedFormats", "no supported formats defined"))
    elif not matching and not runtime.problem:
        reasons.append(RejectionReason("FormatNotSupported", "not in supported formats", runtime.formats, model.kind))
    reasons += _size(model, runtime, notes)
    chosen = [entry for entry in matching if entry.auto_select] or (matching if asked else [])
    if matching and not chosen:
        text = "runtime does not have auto-select enabled for the formats that match; name it to use it"
        reasons.append(RejectionReason("NotAutoSelectable", text))
    if wishes.mode and wishes.mode != runtime.mode:
        text = f"deployment mode {runtime.mode} is not the requested {wishes.mode}"
        reasons.append(RejectionReason("DeploymentModeNotSupported", text))
    if wishes.protocol and runtime.protocols and wishes.protocol not in runtime.protocols:
        text = f"does not speak protocol {cut(wishes.protocol, 40)} that the service asks for"
        text += f" (it lists {listed(runtime.protocols)})"
        reasons.append(RejectionReason("ProtocolNotSupported", text))
    accelerator = ""
    if classes is not None:
        accelerator, reason = _accelerator(model, runtime, wishes, classes, notes)
        reasons += reason
    is_unpublished = bool(model.kind.method) and not model.kind.quantization
    if matching and is_unpublished and not any(entry.quantization for entry in matching):
        notes.append(f"the weights are quantized by {model.kind.method}, which the runtime does not mention")
    best = max(
        chosen, key=lambda entry: (entry.priority or 1, _type_match(entry, model.kind), _weight(entry)), default=None
    )
    if best is None:
        return RuntimeVerdict(runtime, tuple(reasons), tuple(notes))
    priority, named = best.priority or 1, _type_match(best, model.kind)
    if named < 0:
        notes.append(f"its entry names model type {best.model_type}, the model is of type {model.kind.model_type}")
    return RuntimeVerdict(
        runtime, tuple(reasons), tuple(notes), best, priority, _weight(best), accelerator, type_match=named
    )


def _type_match(entry: SupportedFormat, kind: ModelKind) -> int:
    if not entry.model_type or not kind.model_type:
        return 0
    return 1 if entry.model_type.lower() == kind.model_type.lower() else -1


def _weight(entry: SupportedFormat) -> int:
    """What an entry weighs; 0 stands for the published defaults."""
    return (entry.format.weight or 10) + ((entry.framework.weight or 5) if entry.framework else 0)


def _size(model: ModelView, runtime: Runtime, notes: list[str]) -> list[RejectionReason]:
    if not runtime.ranged:
        return []
    first, last = (text[:40] or "any" for text in runtime.size_texts)
    if model.size is None and model.problem:
        text = f"the size of the model cannot be compared with the supported range [{first}, {last}]: {model.problem}"
        return [RejectionReason("ModelSizeInvalid", text)]
    if model.size is None:
        notes.append("the size of the model was not checked: its size is not known")
        return []
    low, high = runtime.smallest, runtime.largest
    if (low is None or low <= model.size) and (high is None or model.size <= high):
        return []
    text = f"model size {model.size_text} is outside supported range [{first}, {last}]"
    return [RejectionReason("SizeOutOfRange", text)]


def _accelerator(
    model: ModelView, runtime: Runtime, wishes: Wishes, classes: Mapping[str, AcceleratorClass], notes: list[str]
) -> tuple[str, list[RejectionReason]]:
    agreed = [name for name in runtime.classes if not wishes.classes or name in wishes.classes]
    if unknown := [name for name in runtime.classes if name not in classes]:
        notes.append(f"unknown accelerator classes: {', '.join(few(unknown))}")
    there = [classes[name] for name in agreed if name in classes]
    if not there:
        if wishes.constraints is not None and not runtime.classes:
            text = "lists no accelerator classes, so that none is known to keep the service's constraints"
            return "", [RejectionReason("AcceleratorConstraints", text)]
        return "", []
    found = place(model.facts, runtime.devices, there, wishes.constraints, wishes.policy, wishes.tokens)
    if found.chosen is None:
        return "", [RejectionReason("NoFittingAccelerator", cut("; ".join(few(found.reasons)), LONGEST_PROBLEM))]
    if found.fit is not None:
        notes.append(f"on {found.chosen.name}: {found.fit.reason}")
    return found.chosen.name, []
