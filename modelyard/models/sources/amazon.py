"""Buckets of Amazon's S3 and of stores that speak its protocol: where they are, and as whom they are read."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any
from urllib.parse import urlsplit

import urllib3

from modelyard.models.sources.http import HttpPool
from modelyard.models.sources.source import Credentials
from modelyard.models.storage import Bucket, FetchError, check_bucket, is_region, unavailable

_AMAZON = re.compile(r"(?:^|[.])s3[.-](?:[a-z0-9.-]+[.])?amazonaws[.]com(?:[.]cn)?\Z")
"""Hosts of Amazon's S3 only: other names of Amazon may belong to its customers."""
_VIRTUAL_ONLY = (".aliyuncs.com", ".myqcloud.com", ".myhuaweicloud.com", ".myhuaweicloud.eu")
"""Stores that refuse the path style, at least for some buckets (OSS says ``SecondLevelDomainForbidden``)."""
_HOST_LABEL = re.compile(r"[a-z0-9][a-z0-9-]{1,61}[a-z0-9]\Z")
_REGION_OF_HOST = re.compile(r"(?:^|[.])(?:s3|obs|oss|cos)[.-](?:dualstack[.])?([a-z]+-[a-z0-9-]+)[.]")
_ELSEWHERE = (301, 307, 400)
"""Statuses with which a region answers for a bucket of another one."""
_FIRST_REGION = "us-east-1"
OTHER_REGION = re.compile(
    r"incorrectly configured region|<Code>(?:PermanentRedirect|AuthorizationHeaderMalformed)</Code>"
)
"""Answers for a bucket of another region, as obstore words them: a redirect to nowhere, or an error."""


@dataclass(frozen=True, slots=True)
class BucketAddress:
    """The address of a bucket. ``own``: at Amazon, where roles and identities of this machine may be used."""

    url: str
    endpoint: str
    region: str
    virtual: bool
    own: bool


def locate(
    uri: Bucket,
    credentials: Credentials,
    endpoint: str | None,
    region: str | None,
    style: str | None,
    region_of: Callable[[str, str | None], str],
) -> BucketAddress:
    """The address of a bucket. ``region_of`` asks Amazon for the region of a bucket, at that of the environment if any.

    Raises FetchError for a region that is none, for one that is missing, and for an unknown addressing style.
    """
    region = uri.region or region
    given = {"region": region, "endpoint": endpoint, "addressingStyle": style}
    check_bucket(uri, {name: value for name, value in given.items() if value is not None})
    if endpoint is None and uri.kind == "oci":
        endpoint = f"https://{uri.namespace}.compat.objectstorage.{region}.oraclecloud.com"
    if endpoint is None and uri.kind == "obs":
        endpoint = f"https://obs.{region}.myhuaweicloud.com"
    around = credentials.get("AWS_REGION", "AWS_DEFAULT_REGION") if region is None else None
    if around is not None:
        check_bucket(uri, {"region": around})
    if endpoint is None:
        region = region or region_of(uri.bucket, around)
        domain = "amazonaws.com.cn" if region.startswith("cn-") else "amazonaws.com"
        base = urlsplit(f"https://s3.{region}.{domain}")
        virtual, own = _HOST_LABEL.match(uri.bucket) is not None, True
    else:
        base = urlsplit(endpoint.rstrip("/"))
        host = (base.hostname or "").rstrip(".")
        named = _REGION_OF_HOST.search(host)
        region = region or (named[1] if named and is_region(named[1]) else None) or around or _FIRST_REGION
        own = base.scheme == "https" and _AMAZON.search(host) is not None
        virtual = host.startswith(f"{uri.bucket}.s3") or host.endswith(_VIRTUAL_ONLY)
    virtual = virtual if style is None else style == "virtual"
    if virtual:
        if not (base.hostname or "").startswith(f"{uri.bucket}."):
            base = base._replace(netloc=f"{uri.bucket}.{base.netloc}")
        url = base.geturl()
        return BucketAddress(url, url, region, True, own)
    return BucketAddress(f"{base.geturl()}/{uri.bucket}", base.geturl(), region, False, own)


def ask_region(bucket: str, around: str | None) -> str:
    """The region of a bucket at Amazon, which says it to anybody; else that of the environment, else us-east-1."""
    near = around or _FIRST_REGION
    domain = "amazonaws.com.cn" if near.startswith("cn-") else "amazonaws.com"
    try:
        answer = HttpPool(public=False, connect=5, read=10).request(
            "HEAD", f"https://s3.{near}.{domain}/{bucket}", redirect=False
        )
    except (urllib3.exceptions.HTTPError, FetchError):
        return near  # What is asked next says better what is wrong.
    named = answer.headers.get("x-amz-bucket-region", "")
    if not is_region(named) or (around is not None and answer.status not in _ELSEWHERE):
        return near
    return named


def other_region(subject: str, uri: Bucket, answer: str) -> FetchError:
    """The error for a bucket that was asked for in the wrong region; with the right one, where that can be known."""
    named = re.search(r"<Region>([a-z0-9-]{1,63})</Region>", answer)
    region = named[1] if named else ask_region(uri.bucket, None) if ".amazonaws.com" in answer else None
    right = f"region {region}" if region else "another region"
    return FetchError(
        "SourceRefused",
        f"{subject}: the bucket is in {right}, not in the one that it was asked in; write s3://{uri.bucket}@"
        f"{region or 'REGION'} in the URI, or correct the parameter region",
    )


def sign_in(credentials: Credentials, address: BucketAddress) -> dict[str, Any]:
    """Options of a store: keys as given; else, at Amazon alone, the role or identity of this machine; else nobody's.

    Keys are given by a provider: an option that is left out would be taken from the environment.
    """
    for source in (Credentials(credentials.folder, {}), Credentials(None, credentials.environ)):
        key = source.get("AWS_ACCESS_KEY_ID", "ACCESS_KEY")
        secret = source.get("AWS_SECRET_ACCESS_KEY", "SECRET_KEY")
        if (key is None) != (secret is None):
            missing = "AWS_ACCESS_KEY_ID" if key is None else "AWS_SECRET_ACCESS_KEY"
            raise FetchError(
                "Unauthorized", f"the credentials have no {missing}; put both keys in the Secret, or neither"
            )
        if key is not None:
            given = {"access_key_id": key, "secret_access_key": secret, "token": source.get("AWS_SESSION_TOKEN")}
            return {"credential_provider": partial(dict, given, expires_at=None)}
    # Whoever may not use this machine's identity has this variable, and it is empty.
    if address.own and credentials.environ.get("AWS_WEB_IDENTITY_TOKEN_FILE") != "":
        return _ambient(address.region)
    return {"skip_signature": True}


def _ambient(region: str) -> dict[str, Any]:
    """The identity of this machine: of a web identity's token, a container, a profile, an instance; else nobody's."""
    import boto3
    from botocore.exceptions import BotoCoreError, ClientError, ConnectionError as NotConnected, HTTPClientError
    from obstore.auth.boto3 import Boto3CredentialProvider

    try:
        session = boto3.Session(region_name=region)
        if session.get_credentials() is None:
            return {"skip_signature": True}
        provider = Boto3CredentialProvider(session)
        provider()  # Now, because a store does not say what has gone wrong with it.
    except (NotConnected, HTTPClientError) as error:
        raise unavailable(f"the identity of this machine cannot be used at Amazon: {error}") from error
    except (BotoCoreError, ClientError, OSError, ValueError) as error:  # of files, too: a token's, a profile's
        raise FetchError(
            "Unauthorized",
            f"the identity of this machine is refused by Amazon: {str(error)[:300]}; correct its role, or put"
            " AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY into the Secret",
        ) from error
    return {"credential_provider": provider}
