"""The files of a GitHub release, over plain HTTPS."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from typing import Any
from urllib.parse import quote

from modelyard.models.sources.http import Http
from modelyard.models.sources.source import Chunk, Listing, SourceFile
from modelyard.models.storage import FetchError, GitHubRelease, unavailable

ENDPOINT = "https://api.github.com"


class GitHub:
    """One release. Assets can be replaced, so the revision is of what they are, not only of the tag."""

    def __init__(
        self, uri: GitHubRelease, endpoint: str | None, token: str | None, parallel: int, public: bool
    ) -> None:
        self.uri = uri
        secret = {"Authorization": f"Bearer {token}"} if token else {}
        self._http = Http(endpoint or ENDPOINT, secret, parallel, public)

    def list(self) -> Listing:
        repository = f"/repos/{self.uri.owner}/{self.uri.repository}"
        tag = "latest" if self.uri.tag == "latest" else f"tags/{quote(self.uri.tag, safe='')}"
        body = self._http.page(f"{repository}/releases/{tag}")
        try:
            release = json.loads(body)
            uploaded = [asset for asset in release["assets"] if asset.get("state", "uploaded") == "uploaded"]
            files = tuple(self._file(repository, asset) for asset in uploaded)
            states = sorted((file.key, file.size, file.etag, file.sha256) for file in files)
            named = str(release["tag_name"])[:100]
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise unavailable(f"{self.uri}: the answer is no release: {str(error)[:200]}") from error
        if not files:
            raise FetchError(
                "NothingToFetch", f"{self.uri}: the release has no files; attach them to it, or name another tag"
            )
        revision = f"{named}-{hashlib.sha256(json.dumps(states).encode()).hexdigest()[:16]}"
        return Listing(f"github {self._http.base} {self.uri.owner}/{self.uri.repository}", revision, files)

    def read(self, file: SourceFile, start: int, length: int) -> Iterator[Chunk]:
        url = f"{self._http.base}{file.key}"
        return self._http.read(url, file.size, start, length, {"Accept": "application/octet-stream"})

    def _file(self, repository: str, asset: dict[str, Any]) -> SourceFile:
        kind, _, digest = str(asset.get("digest") or "").partition(":")
        return SourceFile(
            str(asset["name"]),
            int(asset["size"]),
            f"{repository}/releases/assets/{int(asset['id'])}",
            etag=str(asset["updated_at"]) if asset.get("updated_at") else None,
            sha256=digest if kind == "sha256" else None,
        )
