"""How requests come to a service: hosts and paths, Ingress, HTTPRoutes, VirtualService, an external Service. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from modelyard.objects import Namespace
from modelyard.workloads.rendering import metadata, names
from modelyard.workloads.rendering.reach import ALLOW, HOSTS, allowed
from modelyard.workloads.rendering.request_limits import duration, ingress_annotations
from modelyard.workloads.rendering.settings import IngressSettings
from modelyard.workloads.rendering.values import Abilities, Body, ChildObject, Refusal

INTERNAL: Final = "cluster.local"
LOCAL_LABEL: Final = ("networking.knative.dev/visibility", "cluster-local")
SERVICE_TYPE, LOAD_BALANCER = "ome.io/service-type", "ome.io/load-balancer-ip"
HTTP_ROUTE: Final = ("HTTPRoute", "gateway.networking.k8s.io/v1", "gateway.networking.k8s.io/v1beta1")
VIRTUAL_SERVICE: Final = ("VirtualService", "networking.istio.io/v1", "networking.istio.io/v1beta1")
_PREFIX: Final = "ome.io/ingress-"
_FOR_LOAD_BALANCERS = ("service.beta.kubernetes.io/", "cloud.google.com/", "service.kubernetes.io/")
_SECONDS = 60
_FIELD = re.compile(r"\{\{-?([^{}]*)\}\}")
_LONGEST = 1024
"""Characters of a template."""
_MOST_DOMAINS = 20
_MAPPED = re.compile(r"\.(Labels|Annotations)\.([-\w./]+)\Z")
_HOST = re.compile(r"(?=.{1,253}\Z)[a-z0-9](?:[-a-z0-9]{0,61}[a-z0-9])?(?:\.[a-z0-9](?:[-a-z0-9]{0,61}[a-z0-9])?)+\Z")
_PATH = re.compile(r"/[A-Za-z0-9._~!$&'()*+,;=:@%/-]*\Z")


class Backend(NamedTuple):
    """A component's Service: its kind, name and first port, and the seconds that a request may take.

    ``model`` is the engine's name for the model, ``engine`` which engine it is, ``adapters`` its LoRA adapters' names.
    """

    kind: str
    name: str
    port: int
    seconds: int | None = None
    model: str = ""
    engine: str = ""
    adapters: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class RoutedService:
    """The service that routes are for."""

    name: str
    namespace: str
    labels: Mapping[str, str]
    annotations: Mapping[str, str]

    @property
    def local(self) -> bool:
        return self.labels.get(LOCAL_LABEL[0]) == LOCAL_LABEL[1]


class Routes(NamedTuple):
    """What is made for requests, and the URLs that work as they stand: for clients, and inside the cluster."""

    children: tuple[ChildObject, ...]
    url: str
    address: str


def overridden(settings: IngressSettings, annotations: Mapping[str, str]) -> IngressSettings:
    """The settings with what a service's annotations say."""
    found: dict[str, Any] = {}
    for name, field in (
        ("domain-template", "domain_template"),
        ("domain", "ingress_domain"),
        ("url-scheme", "url_scheme"),
    ):
        if value := annotations.get(_PREFIX + name):
            found[field] = value
    if (path := annotations.get(f"{_PREFIX}path-template")) is not None:
        found["path_template"] = path
    if (domains := annotations.get(f"{_PREFIX}additional-domains")) is not None:
        found["additional_ingress_domains"] = tuple(one for one in map(str.strip, domains.split(",")) if one)
        if len(found["additional_ingress_domains"]) > _MOST_DOMAINS:
            where, problem = f"metadata.annotations[{_PREFIX}additional-domains]", f"names more than {_MOST_DOMAINS}"
            raise Refusal("InvalidSpec", where, problem, "name fewer")
    for name, field in (
        ("disable-istio-virtualhost", "disable_istio_virtual_host"),
        ("disable-creation", "disable_ingress_creation"),
    ):
        if (value := annotations.get(_PREFIX + name)) is not None:
            found[field] = value == "true"
    return settings.model_copy(update=found)


def expanded(template: str, values: Mapping[str, Any], field: str) -> str:
    """A template of a host or path filled in. Raises ``Refusal`` for a field that is not known."""

    def value(found: re.Match[str]) -> str:
        wanted = found[1].strip().removesuffix("-").rstrip()
        if mapped := _MAPPED.match(wanted):
            return str(values[mapped[1]].get(mapped[2], ""))
        known = values.get(wanted.removeprefix(".")) if wanted.startswith(".") else None
        if not isinstance(known, str):
            remedy = "use .Name, .Namespace, .IngressDomain, .Labels.KEY or .Annotations.KEY"
            raise Refusal("InvalidSpec", field, f"{wanted} is no field of such a template", remedy)
        return known

    if len(template) > _LONGEST:
        raise Refusal("InvalidSpec", field, f"is longer than {_LONGEST} characters", "write a shorter one")
    result = _FIELD.sub(value, template)
    if "{{" in result or "}}" in result:
        raise Refusal("InvalidSpec", field, f"{template} is no template", "write {{ .Name }} and the like")
    return result


def host(of: RoutedService, name: str, settings: IngressSettings, domain: str) -> str:
    """The host by the template, for the service or one of its components. Raises ``Refusal``."""
    field = f"metadata.annotations[{_PREFIX}domain-template]"
    values = {"Name": name, "Namespace": of.namespace, "IngressDomain": domain}
    found = expanded(settings.domain_template, {**values, "Annotations": of.annotations, "Labels": of.labels}, field)
    if not _HOST.match(found):
        raise Refusal("InvalidSpec", field, f"invalid domain name {found}", "write one with at least two labels")
    return found


def additional_hosts(found: str, domain: str, additional: Sequence[str]) -> list[str]:
    """The same host in each further domain; of one that is in no domain that is known, none."""
    known = max((one for one in (*additional, domain) if found.endswith(f".{one}")), key=len, default=None)
    if known is None:
        return []
    stem = found.removesuffix(f".{known}")
    others = dict.fromkeys(f"{stem}.{one}" for one in additional if one != known)
    return [one for one in others if _HOST.match(one)]


def path(of: RoutedService, settings: IngressSettings) -> str:
    """The path by the template, ``""`` without one. Raises ``Refusal`` for what has a scheme or host."""
    if not settings.path_template:
        return ""
    field = f"metadata.annotations[{_PREFIX}path-template]"
    found = expanded(settings.path_template, {"Name": of.name, "Namespace": of.namespace}, field)
    if "://" in found:
        raise Refusal("InvalidSpec", field, f"{found} contains either a scheme or a host", "write a path")
    if not _PATH.match(found):
        raise Refusal("InvalidSpec", field, f"{found} is no absolute path", "begin with /, without query")
    return re.sub("/+", "/", found)


def _its_own(
    of: RoutedService, hosts: Sequence[str], where: str, settings: IngressSettings, namespace: Namespace
) -> None:
    """A tenant that chooses its host or path has its namespace in it, or could take over somebody else's.

    ``settings`` are the administrator's. In domains of theirs, where services are NAME.NAMESPACE, it comes last.
    """
    chosen = [
        name
        for name in ("domain-template", "domain", "additional-domains", "path-template")
        if _PREFIX + name in of.annotations
    ]
    if not chosen or HOSTS in allowed(namespace):
        return
    remedy = f"have the namespace as a part of its own in it, or have {ALLOW}: {HOSTS} put on Namespace {of.namespace}"
    domains = (settings.ingress_domain, *settings.additional_ingress_domains)
    for one in hosts:
        # Of domains in one another the longest: NAMESPACE.INNER.OUTER has the namespace before INNER.OUTER.
        domain = max((known for known in domains if f".{one}".endswith(f".{known}")), key=len, default="")
        parts = one.removesuffix(domain).rstrip(".").split(".")
        if of.namespace not in (parts[-1:] if domain else parts):
            problem = f"host {one} could be somebody else's"
            if domain:
                remedy = f"have it end in {of.namespace}.{domain}, or {remedy.partition(', or ')[2]}"
            raise Refusal("NotPermitted", f"metadata.annotations[{_PREFIX}{chosen[0]}]", problem, remedy)
    if where and where.strip("/").split("/")[0] != of.namespace:
        problem = f"path {where} could be somebody else's"
        remedy = f"have it begin with /{of.namespace}, or {remedy.partition(', or ')[2]}"
        raise Refusal("NotPermitted", f"metadata.annotations[{_PREFIX}path-template]", problem, remedy)


def url(scheme: str, where: str, port: int) -> str:
    """A URL, without the port where it is the scheme's own."""
    return f"{scheme}://{where}" if port == {"http": 80, "https": 443}.get(scheme) else f"{scheme}://{where}:{port}"


def internal(name: str, namespace: str) -> str:
    """The name of a Service inside the cluster."""
    return f"{name}.{namespace}.svc.{INTERNAL}"


def rules(of: RoutedService, backends: Mapping[str, Backend]) -> list[tuple[str, Backend]]:
    """Which name goes to which component: the service's to its entry, and those of components to themselves."""
    entry = backends.get(names.ROUTER) or backends[names.ENGINE]
    result = [(of.name, entry)]
    if len(backends) > 1:
        order = [names.ROUTER, names.ENGINE, names.DECODER]
        result += [(backends[kind].name, backends[kind]) for kind in order if kind in backends]
    return result


def routed(
    of: RoutedService,
    backends: Mapping[str, Backend],
    settings: IngressSettings,
    namespace: Namespace,
    abilities: Abilities,
    selectors: Mapping[str, Mapping[str, str]],
    migrating: bool,
) -> Routes:
    """Routes to components that are Deployments or groups."""
    entry = backends.get(names.ROUTER) or backends[names.ENGINE]
    address = url("http", internal(entry.name, of.namespace), entry.port)
    # Before these are ready there is nothing to route to.
    waits = (entry.kind,) if entry.kind == names.ROUTER else tuple(backends)
    if settings.disable_ingress_creation or of.local:
        if of.local:
            return Routes((), address, address)
        child = _external(of, entry, selectors[entry.kind])
        found = url("http", internal(child["metadata"]["name"], of.namespace), entry.port)
        return Routes((ChildObject(child, "external-service", (entry.kind,) if migrating else ()),), found, found)
    if settings.url_scheme not in ("http", "https"):
        problem = f"{settings.url_scheme} is neither http nor https"
        raise Refusal("InvalidSpec", f"metadata.annotations[{_PREFIX}url-scheme]", problem, "write one of the two")
    where = path(of, settings)
    pairs = []
    for name, backend in rules(of, backends):
        first = host(of, name, settings, settings.ingress_domain)
        more = additional_hosts(first, settings.ingress_domain, settings.additional_ingress_domains)
        pairs.append((name, [first, *more], backend))
    theirs = abilities.settings.ingress
    chosen = [one for _, hosts, _ in pairs for one in hosts]
    if where and settings.ingress_domain != theirs.ingress_domain:  # the host of the path
        chosen.append(settings.ingress_domain)
    _its_own(of, chosen, where, theirs, namespace)
    if settings.enable_gateway_api:
        bodies = _http_routes(of, pairs, where, settings, abilities)
    else:
        bodies = [_ingress(of, pairs, where, settings)]
    outside = url(settings.url_scheme, pairs[0][1][0], {"http": 80, "https": 443}[settings.url_scheme])
    return Routes(tuple(ChildObject(one, "ingress", waits) for one in bodies), outside, address)


_Pairs = Sequence[tuple[str, Sequence[str], Backend]]


def _about(of: RoutedService, name: str) -> Body:
    return metadata.of(
        names.fitting(name), of.namespace, {names.SERVICE: names.label_value(of.name)}, metadata.kept(of.annotations)
    )


def _ingress(of: RoutedService, pairs: _Pairs, where: str, settings: IngressSettings) -> Body:
    def rule(one: str, at: str, backend: Backend) -> Body:
        service = {"name": backend.name, "port": {"number": backend.port}}
        return {"host": one, "http": {"paths": [{"path": at, "pathType": "Prefix", "backend": {"service": service}}]}}

    found = [rule(one, "/", backend) for _, hosts, backend in pairs for one in hosts]
    if where:
        found.append(rule(settings.ingress_domain, where, pairs[0][2]))
    spec: Body = {"rules": found}
    if settings.ingress_class_name:
        spec["ingressClassName"] = settings.ingress_class_name
    about, limits = _about(of, of.name), ingress_annotations(settings.ingress_class_name, pairs[0][2].seconds)
    if limits:
        about["annotations"] = {**limits, **(about.get("annotations") or {})}
    return {"apiVersion": "networking.k8s.io/v1", "kind": "Ingress", "metadata": about, "spec": spec}


def _http_routes(
    of: RoutedService, pairs: _Pairs, where: str, settings: IngressSettings, abilities: Abilities
) -> list[Body]:
    version = abilities.version(*HTTP_ROUTE)
    if not version:
        problem = "HTTPRoute of the Gateway API is not served here"
        raise Refusal("RouteNotServed", "enableGatewayAPI", problem, "install the Gateway API, or set it to false")
    gateway_namespace, _, gateway = settings.ome_ingress_gateway.partition("/")
    if not gateway:
        problem = f"{settings.ome_ingress_gateway!r} is not NAMESPACE/NAME"
        raise Refusal("InvalidConfiguration", "ingress.omeIngressGateway", problem, "name the Gateway of the routes")
    names_ = [{"name": "OMe-Isvc-Name", "value": of.name}, {"name": "OME-Isvc-Namespace", "value": of.namespace}]
    headers = {"type": "RequestHeaderModifier", "requestHeaderModifier": {"set": names_}}
    parent = {"group": "gateway.networking.k8s.io", "kind": "Gateway", "name": gateway, "namespace": gateway_namespace}

    def route(name: str, hosts: Sequence[str], at: str, backend: Backend) -> Body:
        rule: Body = {
            "matches": [{"path": {"type": "PathPrefix", "value": at}}],
            "filters": [headers],
            "backendRefs": [{"kind": "Service", "name": backend.name, "port": backend.port, "weight": 1}],
            "timeouts": {"request": duration(backend.seconds or _SECONDS)},
        }
        if at != "/":
            rewrite = {"path": {"type": "ReplacePrefixMatch", "replacePrefixMatch": "/"}}
            rule["filters"] = [headers, {"type": "URLRewrite", "urlRewrite": rewrite}]
        spec = {"parentRefs": [dict(parent)], "hostnames": list(hosts), "rules": [rule]}
        return {"apiVersion": version, "kind": "HTTPRoute", "metadata": _about(of, name), "spec": spec}

    found = [route(name, hosts, "/", backend) for name, hosts, backend in pairs]
    return [*found, route(f"{of.name}-path", [settings.ingress_domain], where, pairs[0][2])] if where else found


def service_type(annotations: Mapping[str, str]) -> Body:
    """The fields of a Service's spec that annotations ask for."""
    kind = annotations.get(SERVICE_TYPE, "")
    found: Body = {"type": kind if kind in ("LoadBalancer", "NodePort") else "ClusterIP"}
    if found["type"] == "LoadBalancer" and (address := annotations.get(LOAD_BALANCER)):
        found["loadBalancerIP"] = address
    return found


def _external(of: RoutedService, entry: Backend, selector: Mapping[str, str]) -> Body:
    annotations = {name: value for name, value in of.annotations.items() if name.startswith(_FOR_LOAD_BALANCERS)}
    labels = {names.SERVICE: names.label_value(of.name), names.COMPONENT: "external-service"}
    port = {"name": "http", "port": entry.port, "targetPort": entry.port, "protocol": "TCP"}
    spec = {**service_type(of.annotations), "selector": dict(selector), "ports": [port]}
    about = metadata.of(names.fitting(of.name), of.namespace, labels, annotations)
    return {"apiVersion": "v1", "kind": "Service", "metadata": about, "spec": spec}


def serverless(
    of: RoutedService, components: Sequence[str], settings: IngressSettings, namespace: Namespace, abilities: Abilities
) -> Routes:
    """Routes to components that are Knative Services: a VirtualService of Istio, and a name inside the cluster."""
    entry = names.ROUTER if names.ROUTER in components else names.ENGINE
    inside = internal(names.fitting(of.name), of.namespace)
    direct = f"http://{internal(names.component(of.name, entry), of.namespace)}"
    version = abilities.version(*VIRTUAL_SERVICE)
    if settings.disable_istio_virtual_host or settings.disable_ingress_creation or not version:
        return Routes((), direct, direct)
    problem, remedy = "is needed for Knative Services behind Istio", "set it in ConfigMap inferenceservice-config"
    for needed in ("knative_local_gateway_service", "local_gateway_service", "local_gateway"):
        if not getattr(settings, needed):
            raise Refusal("InvalidConfiguration", f"ingress.{needed}", problem, remedy)
    hosts, gateways = [inside], [settings.local_gateway, "mesh"]
    outside = host(of, of.name, settings, settings.ingress_domain)
    if not of.local and outside != inside:
        if not settings.ingress_gateway:
            raise Refusal("InvalidConfiguration", "ingress.ingressGateway", "is needed for outside requests", remedy)
        more = [outside, *additional_hosts(outside, settings.ingress_domain, settings.additional_ingress_domains)]
        _its_own(of, more, "", abilities.settings.ingress, namespace)
        hosts += more
        gateways.append(settings.ingress_gateway)

    def route(kind: str, pattern: str) -> Body:
        backend = internal(names.component(of.name, kind), of.namespace)
        headers = {"Host": backend, "OMe-Isvc-Name": of.name, "OME-Isvc-Namespace": of.namespace}
        target = {"host": settings.knative_local_gateway_service, "port": {"number": 8080}}
        return {
            "match": [{"uri": {"regex": pattern}}],
            "route": [{"destination": target, "weight": 100, "headers": {"request": {"set": headers}}}],
        }

    http = [route(entry, "^/.*$")]
    if names.DECODER in components:
        http.insert(0, route(names.DECODER, "^/v1/.*$"))
    labels = {names.SERVICE: names.label_value(of.name)}
    spec = {"hosts": hosts, "gateways": gateways, "http": http}
    virtual = {"apiVersion": version, "kind": "VirtualService", "metadata": _about(of, of.name), "spec": spec}
    alias = {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": metadata.of(names.fitting(of.name), of.namespace, labels, {}),
        "spec": {"type": "ExternalName", "externalName": settings.local_gateway_service},
    }
    waits = (entry, *((names.DECODER,) if names.DECODER in components else ()))
    found = f"http://{inside}"
    if len(hosts) > 1:
        found = url(settings.url_scheme, outside, {"http": 80}.get(settings.url_scheme, 443))
    return Routes(tuple(ChildObject(one, "ingress", waits) for one in (alias, virtual)), found, f"http://{inside}")
