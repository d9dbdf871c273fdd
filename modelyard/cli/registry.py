"""Questions to container registries by the OCI distribution API: does an image exist, and what is its digest?

A manifest is asked for with HEAD, so nothing is downloaded and Docker Hub counts no pull. Where a registry answers 401,
the token that its challenge describes is fetched, as the distribution project specifies. A token or a password goes to
no other host.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path
from typing import NamedTuple
from urllib.parse import quote, urlencode, urljoin, urlsplit

import urllib3

from modelyard.models.sources import TOKEN_LIMIT, HttpPool
from modelyard.models.storage import FetchError
from modelyard.objects import cut, mapping, printable
from modelyard.runtimes import DOCKER_HUB, ImageReference

API = {DOCKER_HUB: "registry-1.docker.io"}
"""Hosts that serve the API of a registry where it is not the registry's own."""
MANIFESTS = ", ".join(
    (
        "application/vnd.oci.image.index.v1+json",
        "application/vnd.oci.image.manifest.v1+json",
        "application/vnd.docker.distribution.manifest.list.v2+json",
        "application/vnd.docker.distribution.manifest.v2+json",
    )
)
CONNECT, READ = 10.0, 30.0
"""Seconds."""
_REDIRECTS = 3
_PARAMETER = re.compile(r'(\w+)="([^"]*)"')


class ImageState(StrEnum):
    """Answer of a registry. ``UNKNOWN``: it could not be asked, or did not say."""

    EXISTS = "exists"
    MISSING = "missing"
    UNKNOWN = "unknown"


class ImageStatus(NamedTuple):
    """State of an image at its registry; ``digest`` is empty where the registry does not send it."""

    state: ImageState
    digest: str = ""
    message: str = ""


class Registries:
    """Registries by name. ``addresses`` replaces hosts (``""``: all), ``plain`` uses HTTP for the replacements only.

    ``logins`` are credentials by registry: the base64 text of user and password.
    """

    def __init__(self, addresses: Mapping[str, str], logins: Mapping[str, str], *, plain: bool = False) -> None:
        self._addresses, self._logins, self._plain = addresses, logins, plain
        self._pool = HttpPool(public=False, connect=CONNECT, read=READ)
        self._authorizations: dict[tuple[str, str], str] = {}

    def status(self, image: ImageReference) -> ImageStatus:
        """Ask the image's registry for its manifest. Failures of the registry become the state ``UNKNOWN``."""
        instead = self._addresses.get(image.registry) or self._addresses.get("")
        host = instead or API.get(image.registry, image.registry)
        # A host that replaces a registry does not get that registry's credentials.
        login = self._logins.get(instead or image.registry, "")
        try:
            return self._status(image, host, login, plain=self._plain and instead is not None)
        except (FetchError, ValueError, RecursionError) as error:
            return ImageStatus(ImageState.UNKNOWN, message=_words(error))
        except (urllib3.exceptions.HTTPError, OSError) as error:
            return ImageStatus(ImageState.UNKNOWN, message=f"{host} cannot be reached: {_words(error)}")

    def _status(self, image: ImageReference, host: str, login: str, *, plain: bool) -> ImageStatus:
        version = quote(image.version, safe=":")
        url = f"{'http' if plain else 'https'}://{host}/v2/{image.repository}/manifests/{version}"
        place = host, image.repository
        answer = self._ask(url, self._authorizations.get(place, ""))
        if answer.status == 401:
            authorization = self._authorization(answer.headers.getlist("WWW-Authenticate"), image, login, url)
            if not authorization:
                return ImageStatus(ImageState.UNKNOWN, message=f"{host} wants credentials; give them with --auth-file")
            self._authorizations[place] = authorization
            answer = self._ask(url, authorization)
        if answer.status == 200:
            return ImageStatus(ImageState.EXISTS, printable(answer.headers.get("Docker-Content-Digest", ""))[:200])
        if answer.status == 404:
            return ImageStatus(ImageState.MISSING, message=f"{host} has no {image.repository}, or not this version")
        if answer.status in (401, 403):
            message = f"{host} denies access (or the repository does not exist); give credentials with --auth-file"
            return ImageStatus(ImageState.UNKNOWN, message=message)
        if answer.status == 429:
            wait = printable(answer.headers.get("Retry-After", ""))[:20]
            return ImageStatus(
                ImageState.UNKNOWN,
                message=f"{host} limits requests; try again later" + (f" (in {wait} s)" if wait else ""),
            )
        return ImageStatus(ImageState.UNKNOWN, message=f"{host} answers {answer.status}; try again later")

    def _request(self, method: str, url: str, headers: Mapping[str, str]) -> tuple[urllib3.BaseHTTPResponse, bytes]:
        answer = self._pool.request(method, url, headers=headers, redirect=False, preload_content=False)
        body = answer.read(TOKEN_LIMIT)
        if len(body) == TOKEN_LIMIT:
            answer.close()
        else:
            answer.release_conn()
        return answer, body

    def _ask(self, url: str, authorization: str) -> urllib3.BaseHTTPResponse:
        method, home = "HEAD", urlsplit(url)
        for _ in range(_REDIRECTS + 2):
            headers = {"Accept": MANIFESTS}
            target = urlsplit(url)
            if authorization and (target.scheme, target.netloc) == (home.scheme, home.netloc):
                headers["Authorization"] = authorization
            answer, _ = self._request(method, url, headers)
            if method == "HEAD" and answer.status in (405, 501):
                method = "GET"
            elif answer.status in (301, 302, 303, 307, 308) and answer.headers.get("Location"):
                url = urljoin(url, answer.headers["Location"])
            else:
                break
        if answer.status == 401 and target.netloc != home.netloc:
            raise ValueError(f"{home.netloc} redirects to {target.netloc}, which wants credentials of its own")
        return answer

    def _authorization(self, challenges: list[str], image: ImageReference, login: str, url: str) -> str:
        """Return the ``Authorization`` header for a challenge; ``""`` where there is no way to answer it."""
        for challenge in challenges:
            scheme, _, rest = challenge[:4096].partition(" ")
            if scheme.lower() == "basic" and login:
                return f"Basic {login}"
            if scheme.lower() == "bearer":
                return f"Bearer {self._token(dict(_PARAMETER.findall(rest)), image, login, url)}"
        return ""

    def _token(self, challenge: Mapping[str, str], image: ImageReference, login: str, url: str) -> str:
        realm = urlsplit(challenge.get("realm", ""))
        if realm.scheme not in ("http", "https") or (realm.scheme == "http" and not url.startswith("http:")):
            raise ValueError(
                f"the registry sends its tokens from {challenge.get('realm', '')[:100]!r}, which is no https URL"
            )
        query = {"service": challenge.get("service", ""), "scope": f"repository:{image.repository}:pull"}
        address = f"{realm.geturl()}{'&' if realm.query else '?'}{urlencode({k: v for k, v in query.items() if v})}"
        headers = {"Accept": "application/json"} | ({"Authorization": f"Basic {login}"} if login else {})
        answer, body = self._request("GET", address, headers)
        if answer.status != 200:
            raise ValueError(f"{realm.netloc} gives no token for {image.repository}: it answers {answer.status}")
        document = mapping(json.loads(body))
        token = document.get("token") or document.get("access_token")
        if not isinstance(token, str) or not re.fullmatch(r"[\x21-\x7e]{1,65536}", token):
            raise ValueError(f"{realm.netloc} gives no token for {image.repository}: its answer has none")
        return token


def _words(error: Exception) -> str:
    return cut(printable(str(error) or type(error).__name__), 300)


def read_logins(path: Path) -> dict[str, str]:
    """Credentials by registry, of a file in the form of Docker's config.json. Raises ``ValueError`` or ``OSError``."""
    entries = mapping(mapping(json.loads(path.read_text("utf-8"))).get("auths"))
    logins = {}
    for name, entry in entries.items():
        login = mapping(entry).get("auth") or ""
        user, password = (mapping(entry).get(part) for part in ("username", "password"))
        if not login and isinstance(user, str) and isinstance(password, str):
            login = base64.b64encode(f"{user}:{password}".encode()).decode()
        host = str(name).partition("://")[2] or str(name)
        host = host.partition("/")[0]
        if isinstance(login, str) and re.fullmatch(r"[A-Za-z0-9+/=]+", login):
            logins[DOCKER_HUB if host in ("index.docker.io", "registry-1.docker.io") else host] = login
    return logins
