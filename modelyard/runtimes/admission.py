"""What the published admission has against a set of runtimes, as warnings: the order of a ranking is defined without
it. Formats are compared by value. Pure.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable
from itertools import combinations

from modelyard.objects import few
from modelyard.runtimes.values import Runtime, SupportedFormat

_MAX_WARNINGS = 100


def warnings(runtimes: Iterable[Runtime], classes: Collection[str] | None = None) -> list[str]:
    """Runtimes that contradict themselves or each other. ``classes`` are the accelerator classes there are."""
    enabled = sorted((runtime for runtime in runtimes if not runtime.disabled), key=lambda runtime: runtime.key)
    found: list[str] = []
    for runtime in enabled:
        found += (f"{_called(runtime)}: {remark}" for remark in runtime.remarks)
        unknown = [name for name in runtime.classes if name not in classes] if classes is not None else []
        if unknown:
            text = f"unknown accelerator classes referenced in AcceleratorRequirements: [{', '.join(few(unknown))}]"
            found.append(f"{_called(runtime)}: {text}")
        found += _within(runtime)
    found += _between(enabled)
    return few(found, _MAX_WARNINGS)


def _called(runtime: Runtime) -> str:
    scope = f"servingruntime {runtime.namespace}/" if runtime.namespace else "clusterservingruntime "
    return f"{scope}{runtime.name}"


def _meaning(entry: SupportedFormat) -> tuple[object, ...]:
    return entry.format, entry.framework, entry.architecture, entry.quantization, entry.diffusion


def _within(runtime: Runtime) -> Iterable[str]:
    seen: dict[tuple[object, ...], int] = {}
    for entry in runtime.formats:
        if entry.auto_select and entry.priority is not None:
            before = seen.setdefault(_meaning(entry), entry.priority)
            if before != entry.priority:
                text = f"different priorities assigned for the model format {entry.format.name}"
                yield f"{_called(runtime)}: {text}: {before} and {entry.priority}; the higher one counts"


def _between(runtimes: Iterable[Runtime]) -> Iterable[str]:
    """Two runtimes of one scope that nothing but their names puts in order."""
    groups: defaultdict[tuple[object, ...], dict[tuple[str, str], Runtime]] = defaultdict(dict)
    for runtime in runtimes:
        for entry in runtime.formats:
            if entry.auto_select and entry.priority is not None:
                same = runtime.namespace, runtime.smallest, runtime.largest, _meaning(entry), entry.priority
                groups[same][runtime.key] = runtime
    for (*_, meaning, _priority), members in groups.items():
        for one, other in combinations(list(members.values())[:10], 2):
            if not one.protocols or not other.protocols or set(one.protocols) & set(other.protocols):
                where = f" in namespace {one.namespace}" if one.namespace else ""
                kind = "servingruntimes" if one.namespace else "clusterservingruntimes"
                name = getattr(meaning[0] if isinstance(meaning, tuple) else None, "name", "")
                text = f"same priority assigned for the model format {name} in the {kind} {one.name} and {other.name}"
                yield f"{text}{where}; their names decide"
