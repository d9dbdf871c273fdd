"""Kubeconfig files of a local cluster."""

from __future__ import annotations

import base64
from pathlib import Path

import yaml

from modelyard.local import certificates
from modelyard.local.files import write_atomically


def write(path: Path, *, pki: Path, server: str, user: str, cluster: str) -> None:
    """Write a kubeconfig for one of the client certificates.

    Args:
        path: file to write; it holds the key itself and needs no other file.
        pki: folder of the certificates.
        server: URL of the API server.
        user: a client certificate's name in `certificates`.
        cluster: name of the cluster and context.
    """

    def encoded(file: Path) -> str:
        return base64.b64encode(file.read_bytes()).decode("ascii")

    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [
            {
                "name": cluster,
                "cluster": {
                    "server": server,
                    "certificate-authority-data": encoded(certificates.certificate(pki, "ca")),
                },
            }
        ],
        "users": [
            {
                "name": user,
                "user": {
                    "client-certificate-data": encoded(certificates.certificate(pki, user)),
                    "client-key-data": encoded(certificates.private_key(pki, user)),
                },
            }
        ],
        "contexts": [{"name": cluster, "context": {"cluster": cluster, "user": user}}],
        "current-context": cluster,
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, yaml.safe_dump(config, sort_keys=False))
