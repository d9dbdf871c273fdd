"""An object store that speaks S3, and the environment that leads boto3 there."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import boto3
import pytest
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
