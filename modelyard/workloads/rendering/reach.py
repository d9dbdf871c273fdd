"""How far a tenant's service reaches: its pods have no more rights than somebody who may give them has given. Pure.

What the baseline level of Kubernetes' Pod Security Standards forbids, and ServiceAccounts, come from a
ClusterServingRuntime, which only administrators write, or are allowed by an annotation of the Namespace.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from modelyard.objects import Namespace
from modelyard.workloads.rendering.own_code import own_code
from modelyard.workloads.rendering.values import Refusal, Right

ALLOW: Final = "modelyard.dev/allow-in-pods"
"""Annotation of a Namespace: what its services may ask for, separated by commas."""
HOST_PATHS, HOST_NAMESPACES, PRIVILEGED, SERVICE_ACCOUNTS, HOSTS, CREDENTIALS = (
    *("host-paths", "host-namespaces", "privileged", "service-accounts"),
    *("hosts", "cluster-credentials"),
)
_CAPABILITIES = frozenset(
    (
        *("AUDIT_WRITE", "CHOWN", "DAC_OVERRIDE", "FOWNER", "FSETID", "KILL", "MKNOD", "NET_BIND_SERVICE"),
        *("SETFCAP", "SETGID", "SETPCAP", "SETUID", "SYS_CHROOT"),
    )
)
_APPARMOR = "container.apparmor.security.beta.kubernetes.io/"
_SECCOMP = ("seccomp.security.alpha.kubernetes.io/", "container.seccomp.security.alpha.kubernetes.io/")


def allowed(namespace: Namespace) -> frozenset[str]:
    """What the administrator of a namespace lets its services ask for."""
    return frozenset(map(str.strip, namespace.annotations.get(ALLOW, "").split(",")))


def rights(spec: Mapping[str, Any]) -> frozenset[Right]:
    """What a pod's spec (one that was checked) has of these."""
    return frozenset(_rights(spec))


def by_annotations(annotations: Mapping[str, str]) -> frozenset[Right]:
    """The same of a pod's annotations, in which older servers have profiles."""
    return frozenset(
        Right(PRIVILEGED, f"annotations[{name}]", value)
        for name, value in annotations.items()
        if (name.startswith(_APPARMOR) and value != "runtime/default" and not value.startswith("localhost/"))
        or (name.startswith(_SECCOMP) and value == "unconfined")
    )


def _rights(spec: Mapping[str, Any]) -> Iterator[Right]:
    for name in ("hostNetwork", "hostPID", "hostIPC"):
        if spec.get(name):
            yield Right(HOST_NAMESPACES, name, "true")
    for name in ("serviceAccountName", "serviceAccount"):
        if (account := spec.get(name)) and account != "default":
            yield Right(SERVICE_ACCOUNTS, name, str(account))
    for volume in spec.get("volumes") or ():
        if "hostPath" in volume:
            yield Right(HOST_PATHS, "volumes.hostPath", str(volume["hostPath"]))
    context = spec.get("securityContext") or {}
    yield from _context(context, "securityContext")
    if context.get("sysctls"):
        yield Right(PRIVILEGED, "securityContext.sysctls", str(context["sysctls"]))
    for kind in ("initContainers", "containers", "ephemeralContainers"):
        for one in spec.get(kind) or ():
            where = f"{kind}[{one['name']}]"
            yield from _context(one.get("securityContext") or {}, f"{where}.securityContext")
            for port in one.get("ports") or ():
                if port.get("hostPort"):
                    yield Right(HOST_NAMESPACES, f"{where}.ports.hostPort", str(port["hostPort"]))


def _context(context: Mapping[str, Any], where: str) -> Iterator[Right]:
    if context.get("privileged"):
        yield Right(PRIVILEGED, f"{where}.privileged", "true")
    for one in (context.get("capabilities") or {}).get("add") or ():
        if not isinstance(one, str) or one.removeprefix("CAP_") not in _CAPABILITIES:
            yield Right(PRIVILEGED, f"{where}.capabilities", str(one))
    if context.get("procMount") not in (None, "Default"):
        yield Right(PRIVILEGED, f"{where}.procMount", str(context["procMount"]))
    for name in ("seccompProfile", "appArmorProfile"):
        profile = context.get(name)
        if profile and not (isinstance(profile, Mapping) and profile.get("type") in ("RuntimeDefault", "Localhost")):
            yield Right(PRIVILEGED, f"{where}.{name}", str(profile))
    for name in ("seLinuxOptions", "windowsOptions"):
        if context.get(name):
            yield Right(PRIVILEGED, f"{where}.{name}", str(context[name]))


def check(
    path: str,
    asked: frozenset[Right],
    given: frozenset[Right],
    namespace: Namespace,
    own: Sequence[tuple[str, Mapping[str, Any]]],
    untrusted: str = "",
) -> bool:
    """Raise ``Refusal`` for a right that is neither ``given`` by an administrator's runtime nor allowed here.

    Nor may a service bring a program of its own (``own`` are its parts of the pod) into one with rights by its runtime.
    ``untrusted`` names the field of a model whose files are the tenant's own and whose code the engine runs.

    Return whether the pods have rights that only their runtime gives.
    """
    here = allowed(namespace)
    wanted = sorted(right for right in asked if right.what not in here)
    for right in wanted:
        if right not in given:
            remedy = (
                f"leave it out, use a ClusterServingRuntime that has it, or have an administrator put the annotation"
                f" {ALLOW}: {right.what} on Namespace {namespace.name}"
            )
            problem = f"{right.value} is not for everybody to give"
            raise Refusal("NotPermitted", f"{path}.{right.field}", problem, remedy)
    if not wanted:
        return False
    problem = f"the runtime gives these pods {wanted[0].field}, so that a service may not put its own into them"
    allowing = f"have an administrator put {ALLOW}: {wanted[0].what} on Namespace {namespace.name}"
    for where, part in own:
        if name := own_code(part):
            raise Refusal("NotPermitted", f"{where}.{name}", problem, f"leave it out, or {allowing}")
    if untrusted:
        problem += ", and its engine runs code that is among the model's files (--trust-remote-code)"
        remedy = f"name a ClusterBaseModel or a runtime that runs no code of models, or {allowing}"
        raise Refusal("NotPermitted", untrusted, problem, remedy)
    return True
