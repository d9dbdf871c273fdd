"""``modelyard node adapters`` against an engine's API on a socket."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from modelyard.cli.adapters import converge


class AdapterApi(ThreadingHTTPServer):
    """What an engine shows of its adapters. ``refuses`` are names that it does not load."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.loaded: dict[str, str] = {}
        self.refuses: set[str] = set()
        self.asked: list[str] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"


class _Handler(BaseHTTPRequestHandler):
    server: AdapterApi

    def do_GET(self) -> None:
        base = {"id": "base", "parent": None, "root": "/models/base"}
        found = [{"id": name, "root": root, "parent": "base"} for name, root in self.server.loaded.items()]
        self._answer(200, {"data": [base, *found]})

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        name = body["lora_name"]
        self.server.asked.append(f"{self.path.rpartition('/')[2].partition('_')[0]} {name}")
        if name in self.server.refuses:
            self._answer(400, {"message": "no"})
        elif "unload" in self.path:
            del self.server.loaded[name]
            self._answer(200, {})
        else:
            self.server.loaded[name] = body["lora_path"]
            self._answer(200, {})

    def _answer(self, status: int, body: Any) -> None:
        data = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def api() -> Iterator[AdapterApi]:
    server = AdapterApi()
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield server
    server.shutdown()
    server.server_close()
    thread.join()


def listing(tmp_path: Path, *names: str, folder: str = "v1") -> Path:
    """A list of adapters whose files are there already."""
    entries = []
    for name in names:
        path = tmp_path / "root" / f"{name}-{folder}"
        path.mkdir(parents=True, exist_ok=True)
        entries.append({"name": name, "source": f"local://{path}", "path": str(path)})
    file = tmp_path / "adapters.json"
    file.write_text(json.dumps(entries), "utf-8")
    return file


def test_an_engine_gets_what_is_listed_and_loses_what_is_not(api: AdapterApi, tmp_path: Path) -> None:
    root = tmp_path / "root"
    assert converge(listing(tmp_path, "a", "b"), root, api.url) == []
    assert sorted(api.loaded) == ["a", "b"]
    assert converge(listing(tmp_path, "a", "b"), root, api.url) == []
    assert api.asked == ["load a", "load b"]
    assert converge(listing(tmp_path, "a", folder="v2"), root, api.url) == []
    assert api.asked[2:] == ["unload a", "unload b", "load a"]
    assert api.loaded["a"].endswith("a-v2")


def test_one_adapter_that_fails_stops_no_other(api: AdapterApi, tmp_path: Path) -> None:
    api.refuses = {"a"}
    file = listing(tmp_path, "a", "b", "c")
    (tmp_path / "root" / "b-v1").rmdir()
    failures = converge(file, tmp_path / "root", api.url)
    assert [one.partition(":")[0] for one in failures] == ["adapter a", "adapter b"]
    assert list(api.loaded) == ["c"]


def test_without_engine_or_list_nothing_happens(api: AdapterApi, tmp_path: Path) -> None:
    file = listing(tmp_path, "a")
    (failure,) = converge(file, tmp_path / "root", "http://127.0.0.1:1")
    assert failure.startswith("cannot look")
    file.write_text("{}", "utf-8")
    assert converge(file, tmp_path / "root", api.url) == ["cannot look: ValueError: the list of adapters is no list"]
    file.unlink()
    assert converge(file, tmp_path / "root", api.url) == []
    assert api.asked == []
