"""Command lines of etcd and the Kubernetes servers.

Written against the flags that Kubernetes 1.20 and current releases share; what differs is decided by version here.
"""

from __future__ import annotations

from dataclasses import replace

from modelyard.local import certificates
from modelyard.local.components.spec import ClusterContext, ComponentSpec, both, http_ok, knows_flag, printable, version
from modelyard.local.settings import Component

# Until these releases the plain HTTP ports were on by default, bound to every interface.
_INSECURE_PORT_GONE = {Component.CONTROLLER_MANAGER: (1, 24), Component.SCHEDULER: (1, 23)}

# Until this release finished Jobs ignored their ttlSecondsAfterFinished.
_JOB_TTL_GATE = "--feature-gates=TTLAfterFinished=true"
_JOB_TTL_SINCE = (1, 21)


def etcd(cluster: ClusterContext) -> ComponentSpec:
    """One etcd member on a data directory of its own."""
    program, ports = cluster.program("etcd"), cluster.ports
    client, peer = f"http://127.0.0.1:{ports.etcd}", f"http://127.0.0.1:{ports.etcd_peer}"
    argv = [
        program,
        "--name=default",
        f"--data-dir={cluster.paths.etcd}",
        f"--listen-client-urls={client}",
        f"--advertise-client-urls={client}",
        f"--listen-peer-urls={peer}",
        f"--initial-advertise-peer-urls={peer}",
        f"--initial-cluster=default={peer}",
        f"--quota-backend-bytes={2 * 1024**3}",
    ]
    if knows_flag(program, "--unsafe-no-fsync"):
        # A killed etcd loses nothing by this, only a machine that loses power does.
        argv.append("--unsafe-no-fsync")
    return ComponentSpec(
        Component.ETCD,
        argv + cluster.extra(Component.ETCD),
        http_ok(f"{client}/health", contains='"true"'),
        version=printable(version(program)),
    )


def apiserver(cluster: ClusterContext) -> ComponentSpec:
    """The API server with RBAC, service account tokens and API aggregation."""
    program, ports, pki = cluster.program("kube-apiserver"), cluster.ports, cluster.paths.pki
    found = version(program)
    ca = certificates.certificate(pki, "ca")
    argv = [
        program,
        f"--etcd-servers=http://127.0.0.1:{ports.etcd}",
        "--bind-address=127.0.0.1",
        "--advertise-address=127.0.0.1",
        f"--secure-port={ports.apiserver}",
        f"--tls-cert-file={certificates.certificate(pki, certificates.SERVER)}",
        f"--tls-private-key-file={certificates.private_key(pki, certificates.SERVER)}",
        f"--client-ca-file={ca}",
        "--authorization-mode=Node,RBAC",
        "--allow-privileged=true",
        f"--service-cluster-ip-range={cluster.service_network}",
        "--service-account-issuer=https://kubernetes.default.svc.cluster.local",
        f"--service-account-key-file={pki / 'service-account.pub'}",
        f"--service-account-signing-key-file={certificates.private_key(pki, 'service-account')}",
        # The kubernetes Service would point at a loopback address, which Kubernetes refuses.
        "--endpoint-reconciler-type=none",
        # For `kubectl logs`: the agent lets in whom our authority knows.
        f"--kubelet-client-certificate={certificates.certificate(pki, certificates.ADMIN)}",
        f"--kubelet-client-key={certificates.private_key(pki, certificates.ADMIN)}",
        "--kubelet-preferred-address-types=InternalIP",
        f"--requestheader-client-ca-file={ca}",
        "--requestheader-allowed-names=front-proxy-client",
        "--requestheader-extra-headers-prefix=X-Remote-Extra-",
        "--requestheader-group-headers=X-Remote-Group",
        "--requestheader-username-headers=X-Remote-User",
        f"--proxy-client-cert-file={certificates.certificate(pki, certificates.FRONT_PROXY)}",
        f"--proxy-client-key-file={certificates.private_key(pki, certificates.FRONT_PROXY)}",
        "--profiling=false",
    ]
    if found < _JOB_TTL_SINCE:
        argv.append(_JOB_TTL_GATE)
    if Component.CONTROLLER_MANAGER not in cluster.settings.components:
        # Nobody would make the service accounts that this plug-in waits for, so no pod could be created.
        argv.append("--disable-admission-plugins=ServiceAccount")
    return ComponentSpec(
        Component.APISERVER,
        argv + cluster.extra(Component.APISERVER),
        http_ok(f"https://127.0.0.1:{ports.apiserver}/readyz", ca),
        version=printable(found),
        grace=15,
    )


def controller_manager(cluster: ClusterContext) -> ComponentSpec:
    """The controller-manager with every controller that needs no cloud."""
    program, pki = cluster.program("kube-controller-manager"), cluster.paths.pki
    ca = certificates.certificate(pki, "ca")
    argv = [
        program,
        *_client_flags(cluster, Component.CONTROLLER_MANAGER, certificates.CONTROLLER_MANAGER),
        f"--secure-port={cluster.ports.controller_manager}",
        f"--service-account-private-key-file={certificates.private_key(pki, 'service-account')}",
        f"--root-ca-file={ca}",
        f"--cluster-signing-cert-file={ca}",
        f"--cluster-signing-key-file={certificates.private_key(pki, 'ca')}",
        "--use-service-account-credentials=true",
    ]
    if version(program) < _JOB_TTL_SINCE:
        argv.append(_JOB_TTL_GATE)
    if Component.AGENT in cluster.settings.components:
        # Endpoints may not be loopback addresses: these would only complain, of every Service, without end.
        argv.append("--controllers=*,-endpoint,-endpointslice")
    # Pods are refused until their namespace has its service account, before 1.24 with a token: part of being ready.
    works = http_ok(
        f"https://127.0.0.1:{cluster.ports.apiserver}/api/v1/namespaces/default/serviceaccounts/default",
        ca,
        client=(certificates.certificate(pki, certificates.ADMIN), certificates.private_key(pki, certificates.ADMIN)),
        contains='"secrets"' if version(program) < (1, 24) else "",
    )
    spec = _client_component(cluster, Component.CONTROLLER_MANAGER, argv, cluster.ports.controller_manager)
    return replace(spec, ready=both(spec.ready, works))


def scheduler(cluster: ClusterContext) -> ComponentSpec:
    """The scheduler with its default profile."""
    argv = [
        cluster.program("kube-scheduler"),
        *_client_flags(cluster, Component.SCHEDULER, certificates.SCHEDULER),
        f"--secure-port={cluster.ports.scheduler}",
    ]
    return _client_component(cluster, Component.SCHEDULER, argv, cluster.ports.scheduler)


def _client_flags(cluster: ClusterContext, component: Component, user: str) -> list[str]:
    kubeconfig, pki = cluster.paths.kubeconfigs / user, cluster.paths.pki
    return [
        f"--kubeconfig={kubeconfig}",
        f"--authentication-kubeconfig={kubeconfig}",
        f"--authorization-kubeconfig={kubeconfig}",
        "--bind-address=127.0.0.1",
        f"--tls-cert-file={certificates.certificate(pki, certificates.SERVER)}",
        f"--tls-private-key-file={certificates.private_key(pki, certificates.SERVER)}",
        # One of each: an election would only make a restart wait for the old lease to run out.
        "--leader-elect=false",
    ]


def _client_component(cluster: ClusterContext, component: Component, argv: list[str], port: int) -> ComponentSpec:
    found = version(argv[0])
    if found < _INSECURE_PORT_GONE[component]:
        argv.append("--port=0")
    return ComponentSpec(
        component,
        argv + cluster.extra(component),
        http_ok(f"https://127.0.0.1:{port}/healthz", certificates.certificate(cluster.paths.pki, "ca")),
        version=printable(found),
    )
