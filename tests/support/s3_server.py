"""An object store that speaks S3, and so the XML protocol of Google's, and the environment that leads boto3 there."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import boto3
import pytest
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from moto.server import ThreadedMotoServer

BUCKET = "reports"


@contextmanager
def object_store() -> Iterator[Any]:
    """A client of a server with one bucket; what is called meanwhile finds it by boto3's own variables."""
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("AWS_ENDPOINT_URL", "http://{}:{}".format(*server.get_host_and_port()))
        environment.setenv("AWS_REGION", "us-east-1")
        environment.setenv("AWS_DEFAULT_REGION", "us-east-1")
        environment.setenv("AWS_ACCESS_KEY_ID", "tester")
        environment.setenv("AWS_SECRET_ACCESS_KEY", "secret")
        try:
            client = boto3.client("s3")
            client.create_bucket(Bucket=BUCKET)
            yield client
        finally:
            server.stop()


def keys(client: Any, prefix: str) -> list[str]:
    """What is below a prefix, without it."""
    found = client.list_objects_v2(Bucket=BUCKET, Prefix=prefix).get("Contents", ())
    return [item["Key"].removeprefix(prefix) for item in found]


def google_account() -> str:
    """A key of a service account, as Google gives it; its tokens are signed with it, and nobody is asked for one."""
    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    pem = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()).decode()
    about = {"type": "service_account", "client_email": "results@project.iam.gserviceaccount.com"}
    return json.dumps({**about, "private_key": pem, "private_key_id": "k1"})
