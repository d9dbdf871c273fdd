"""The cluster's certificates, made once per instance by the supervisor, and the kubeconfig files that hold them.

What each is for is the table of https://kubernetes.io/docs/setup/best-practices/certificates/. One authority signs
servers, clients and the front proxy: the front proxy is told apart by its common name.
"""

from __future__ import annotations

import base64
import ipaddress
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path

import yaml
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.x509.oid import ExtendedKeyUsageOID

from modelyard.local.paths import write_atomically

ADMIN = "admin"
CONTROLLER_MANAGER = "controller-manager"
SCHEDULER = "scheduler"
AGENT = "agent"
PROMETHEUS = "prometheus"
FRONT_PROXY = "front-proxy"
SERVER = "server"

# Common name and organisations (user and groups) of each client. The agent and Prometheus are admins of this cluster:
# it listens on loopback and belongs to the one user who can read these files.
_CLIENTS = {
    ADMIN: "CN=modelyard-admin,O=system:masters",
    CONTROLLER_MANAGER: "CN=system:kube-controller-manager",
    SCHEDULER: "CN=system:kube-scheduler",
    AGENT: "CN=modelyard-node-agent,O=system:masters",
    PROMETHEUS: "CN=modelyard-prometheus,O=system:masters",
    FRONT_PROXY: "CN=front-proxy-client",
}
_SERVER_NAMES = [
    "localhost",
    "kubernetes",
    "kubernetes.default",
    "kubernetes.default.svc",
    "kubernetes.default.svc.cluster.local",
]
_VALIDITY = timedelta(days=3650)


def certificate(folder: Path, name: str) -> Path:
    """Path of a certificate; `ca` is the authority's."""
    return folder / f"{name}.crt"


def private_key(folder: Path, name: str) -> Path:
    """Path of a private key; `service-account` signs the tokens."""
    return folder / f"{name}.key"


def create(folder: Path) -> None:
    """Make all keys and certificates (PEM, P-256, ten years) unless the folder has them already."""
    marker = folder / "complete"
    if marker.exists():
        return
    folder.mkdir(parents=True, exist_ok=True)
    folder.chmod(0o700)
    now = datetime.now(UTC)
    ca_key = ec.generate_private_key(ec.SECP256R1())
    ca_name = x509.Name.from_rfc4514_string("CN=modelyard-local-ca")
    ca = (
        _builder(ca_name, ca_name, ca_key.public_key(), now)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_key_usage(sign_certificates=True), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(ca_key.public_key()), critical=False)
        .sign(ca_key, hashes.SHA256())
    )
    _write_key(private_key(folder, "ca"), ca_key)
    certificate(folder, "ca").write_bytes(ca.public_bytes(serialization.Encoding.PEM))

    for name, subject in {**_CLIENTS, SERVER: "CN=modelyard-local"}.items():
        _leaf(folder, name, subject, ca, ca_key, now)

    # RS256: what every Kubernetes version can sign service account tokens with.
    account = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    _write_key(private_key(folder, "service-account"), account)
    (folder / "service-account.pub").write_bytes(
        account.public_key().public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
    )
    marker.touch()


def write_kubeconfig(path: Path, *, pki: Path, server: str, user: str, cluster: str) -> None:
    """Write a kubeconfig for a client certificate in `pki`; it holds the key itself and needs no other file.

    `server`: URL of the API server; `user`: name of a client certificate here; `cluster`: name of cluster and context.
    """

    def encoded(file: Path) -> str:
        return base64.b64encode(file.read_bytes()).decode("ascii")

    place = {"server": server, "certificate-authority-data": encoded(certificate(pki, "ca"))}
    identity = {
        "client-certificate-data": encoded(certificate(pki, user)),
        "client-key-data": encoded(private_key(pki, user)),
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, kubeconfig(cluster, place, user, identity))


def kubeconfig(name: str, cluster: Mapping[str, str], user: str, identity: Mapping[str, str], **context: str) -> str:
    """Return a kubeconfig for one user of one cluster; its context is called as the cluster."""
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": name, "cluster": dict(cluster)}],
        "users": [{"name": user, "user": dict(identity)}],
        "contexts": [{"name": name, "context": {"cluster": name, "user": user, **context}}],
        "current-context": name,
    }
    return yaml.safe_dump(config, sort_keys=False)


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey, now: datetime
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        # A little into the past, for clocks that are set back.
        .not_valid_before(now - timedelta(hours=1))
        .not_valid_after(now + _VALIDITY)
    )


def _key_usage(*, sign_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=True,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=sign_certificates,
        crl_sign=sign_certificates,
        encipher_only=False,
        decipher_only=False,
    )


def _leaf(
    folder: Path, name: str, subject: str, ca: x509.Certificate, ca_key: ec.EllipticCurvePrivateKey, now: datetime
) -> None:
    key = ec.generate_private_key(ec.SECP256R1())
    usage = ExtendedKeyUsageOID.SERVER_AUTH if name == SERVER else ExtendedKeyUsageOID.CLIENT_AUTH
    builder = (
        _builder(x509.Name.from_rfc4514_string(subject), ca.subject, key.public_key(), now)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_key_usage(sign_certificates=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage([usage]), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(ca_key.public_key()), critical=False)
    )
    if name == SERVER:
        names: list[x509.GeneralName] = [x509.DNSName(host) for host in _SERVER_NAMES]
        names.append(x509.IPAddress(ipaddress.ip_address("127.0.0.1")))
        builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
    _write_key(private_key(folder, name), key)
    certificate(folder, name).write_bytes(
        builder.sign(ca_key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)
    )


def _write_key(path: Path, key: ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey) -> None:
    path.touch(mode=0o600)
    path.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.TraditionalOpenSSL, serialization.NoEncryption()
        )
    )
