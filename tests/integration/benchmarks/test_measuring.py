"""One run: of the real program on a simulated engine, and of whatever goes wrong before, in and after it."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import psutil
import pytest
from matplotlib.image import imsave

from modelyard.benchmarks.measuring import measure, results
from modelyard.benchmarks.records.values import MEASUREMENT, Measurement, MeasurementReport, Output

KEY = "verysecretkey"


def asked(folder: Path, url: str, words: Path, **changes: Any) -> Measurement:
    given: dict[str, Any] = {
        "reference": "chat/nightly",
        "service": "chat/demo",
        "backend": "vllm",
        "url": url,
        "model": "demo",
        "tokenizer": str(words),
        "task": "text-to-text",
        "scenario": "D(50,20)",
        "concurrency": 4,
        "minutes": 1,
        "requests": 20,
        "output": Output(uri=f"local://{folder}", folder="nightly"),
    }
    return Measurement(**{**given, **changes})


def run(what: Measurement, program: Path, **environ: str) -> tuple[MeasurementReport, str]:
    said: list[str] = []
    report = measure.measure(what, program, {**os.environ, "MODEL_API_KEY": KEY, **environ}, said.append)
    return report, "\n".join(said)


def everything(folder: Path) -> bytes:
    return b"".join(path.read_bytes() for path in folder.rglob("*") if path.is_file())


def test_a_run_of_the_real_program_is_measured_stored_and_told(
    tmp_path: Path, engine: Callable[..., str], program: Path, words: Path
) -> None:
    """As its Job runs it: a process with variables."""
    what = asked(tmp_path, engine("--profile", "h100"), words, request_parameters={"temperature": "0.5"})
    report = tmp_path / "report.json"
    done = subprocess.run(
        [sys.executable, "-m", "modelyard.cli.main", "benchmarks", "measure", "--report", str(report)],
        env={**os.environ, MEASUREMENT: what.model_dump_json(), "MODEL_API_KEY": KEY, "GENAI_BENCH": str(program)},
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    told = MeasurementReport.model_validate_json(report.read_text())
    assert told == MeasurementReport.model_validate_json(done.stdout.splitlines()[-1])
    measured = told.run
    assert measured is not None
    assert (measured.failed, measured.output_tokens) == (0, 20), "the back end is told to ignore the end of a text"
    assert measured.requests >= 20
    assert measured.ttft is not None
    assert measured.itl is not None
    assert measured.itl.p50 >= 0.005, "α of the engine is 7 ms, and a chunk of a stream may hold more than one token"
    assert told.results == f"local://{tmp_path}/nightly"
    assert results.load(told.results).runs == (measured,)
    assert KEY.encode() not in everything(tmp_path)
    assert KEY not in done.stdout + done.stderr
    assert "until 20 requests or 1 min" in done.stdout


def test_a_share_of_errors_that_the_program_calls_good_fails_the_run(
    tmp_path: Path, engine: Callable[..., str], program: Path, words: Path
) -> None:
    what = asked(tmp_path, engine("--failure-rate", "0.3", "--seed", "2"), words)
    report, _ = run(what, program)
    assert (report.reason, report.retryable) == ("TooManyErrors", True), report.message
    assert "x 500" in report.message
    assert not list(tmp_path.rglob("run.json"))


# Endpoints


class Endpoint(BaseHTTPRequestHandler):
    """Answers with a status and a body, which may depend on what is asked, or never."""

    protocol_version = "HTTP/1.1"
    status, headers_too = 200, {}

    @staticmethod
    def answer(asked: dict[str, Any]) -> bytes:
        return b""

    def log_message(self, *_: Any) -> None:
        pass

    def do_POST(self) -> None:
        body = self.answer(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
        first, end, others = body.partition(b"\n\n")
        length = {"Transfer-Encoding": "chunked"} if others else {"Content-Length": str(len(body))}
        self.send_response(self.status)
        for name, value in {**self.headers_too, **length, "Connection": "close"}.items():
            self.send_header(name, value)
        self.end_headers()
        if not others:
            self.wfile.write(body)
        else:  # events of a stream come one after the other, as an engine's do
            with contextlib.suppress(BrokenPipeError):  # of who waits no longer
                for part in (first + end, others, b""):
                    self.wfile.write(b"%x\r\n%b\r\n" % (len(part), part))
                    time.sleep(0.02)


@contextlib.contextmanager
def endpoint(status: int, body: bytes | Callable[[dict[str, Any]], bytes], **headers: str) -> Iterator[str]:
    answer = staticmethod(body if callable(body) else lambda _: body)
    handler = type("Answers", (Endpoint,), {"status": status, "answer": answer, "headers_too": headers})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()


USAGE = b'data: {"choices":[],"usage":{"prompt_tokens":1,"completion_tokens":6}}\n\ndata: [DONE]\n\n'
STREAM = b'data: {"choices":[{"index":0,"delta":{"content":"tok"},"finish_reason":"stop"}]}\n\ndata: [DONE]\n\n'
WORDS = (
    b'data: {"choices":[{"index":0,"delta":{"content":"tok"}}]}\n\n' * 5 + STREAM.partition(b"data: [DONE]")[0] + USAGE
)


@pytest.mark.parametrize(
    ("status", "body", "headers", "reason", "retryable", "says"),
    [
        (500, b"boom " + KEY.encode(), {}, "EndpointFailing", True, "HTTP 500"),
        (429, b"", {}, "EndpointFailing", True, "HTTP 429"),
        (401, b"", {}, "EndpointRefused", False, "give its key as MODEL_API_KEY"),
        (404, b"no model demo", {}, "EndpointRefused", False, "no model demo"),
        (302, b"", {"Location": "http://169.254.169.254/"}, "EndpointRefused", False, "it sends elsewhere"),
        (200, STREAM, {}, "UsageMissing", False, "include_usage"),
        (200, b"x" * (2 << 20), {}, "StreamMissing", False, "is no stream of events"),
        (
            200,
            b'{"choices": [], "usage": {"completion_tokens": 4}}',
            {},
            "StreamMissing",
            False,
            "honours stream: true",
        ),
    ],
)
def test_an_endpoint_that_would_spoil_the_run_is_found_before_it(
    tmp_path: Path,
    stand_in: Callable[[str], Path],
    words: Path,
    status: int,
    body: bytes,
    headers: dict[str, str],
    reason: str,
    retryable: bool,
    says: str,
) -> None:
    with endpoint(status, body, **headers) as url:
        report, said = run(asked(tmp_path, url, words), stand_in("exit 1"))
    assert (report.reason, report.retryable) == (reason, retryable), report.message
    assert says in report.message
    assert KEY not in report.message + said


def test_request_parameters_that_the_endpoint_refuses_are_found_before_the_run(
    tmp_path: Path, stand_in: Callable[[str], Path], words: Path
) -> None:
    seen: list[dict[str, Any]] = []

    def answer(asked: dict[str, Any]) -> bytes:
        seen.append(asked)
        return USAGE

    given = {"top_p": "0.9", "min_tokens": "20", "ignore_eos": "true", "system_message": "Be brief."}
    with endpoint(200, answer) as url:
        run(asked(tmp_path, url, words, request_parameters=given), stand_in("exit 1"))
    assert (seen[0]["top_p"], seen[0]["min_tokens"], seen[0]["max_tokens"]) == (0.9, 20, 20)
    assert not {"ignore_eos", "system_message"} & seen[0].keys(), "which the program turns into something else"


def test_answers_that_arrive_in_one_piece_are_refused(tmp_path: Path, program: Path, words: Path) -> None:
    """As behind a proxy that buffers: the program alone would tell an ITL of no engine, or end in an exception."""
    whole = WORDS.replace(b"\n\n", b"\n \n")  # one event after another, and all of them at once
    with endpoint(200, whole, **{"Content-Type": "text/event-stream"}) as url:
        report, _ = run(asked(tmp_path, url, words), program)
    assert (report.outcome, report.reason, report.retryable) == ("Failed", "StreamBuffered", False), report.message
    assert "answers arrived in one piece" in report.message
    assert not list(tmp_path.rglob("run.json"))


def test_an_endpoint_that_tells_its_usage_only_at_first_is_found_in_the_run(
    tmp_path: Path, program: Path, words: Path
) -> None:
    def answer(asked: dict[str, Any]) -> bytes:
        probed = asked.get("max_tokens") == 4
        return USAGE if probed else STREAM.replace(b'"tok"', b'"tok tok tok"')

    with endpoint(200, answer, **{"Content-Type": "text/event-stream"}) as url:
        report, _ = run(asked(tmp_path, url, words), program)
    assert (report.reason, report.retryable) == ("UsageMissing", False), report.message
    assert not list(tmp_path.rglob("run.json"))


SOONER = """\
import genai_bench.cli.cli as program
manage = program.manage_run_time
program.manage_run_time = lambda max_time_per_run, **others: manage(max_time_per_run=max_time_per_run // 10, **others)
program.cli()
"""
"""The program, whose minutes are of six seconds."""


def test_an_endpoint_that_stops_answering_in_the_run_is_found_and_nothing_hangs_with_it(
    tmp_path: Path, program: Path, stand_in: Callable[[str], Path], words: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It answers so well before that the program calls the run good."""
    monkeypatch.setattr(measure, "ANSWER_WITHIN", 5.0)
    asked_for, over, file = [], threading.Event(), tmp_path / "pids"

    def answer(asked: dict[str, Any]) -> bytes:
        asked_for.append(asked)
        if len(asked_for) > 8:
            over.wait(120)
        return WORDS

    (tmp_path / "sooner.py").write_text(SOONER)
    sooner = stand_in(f'echo $$ > {file}; exec {program.with_name("python")} {tmp_path / "sooner.py"} "$@"')
    with endpoint(200, answer, **{"Content-Type": "text/event-stream"}) as url:
        report, said = run(asked(tmp_path, url, words, requests=1000), sooner)
        over.set()
    assert (report.reason, report.retryable) == ("EndpointSilent", True), report.message
    assert f"after the run: endpoint {url}: no answer within 5 s" in report.message
    assert "the requests are over" in said
    assert not list(tmp_path.rglob("run.json")), "what was answered before says nothing"
    assert len(pids(file)) == 1
    assert not left(file)


def test_embeddings_are_measured_by_the_batch(tmp_path: Path, program: Path, words: Path) -> None:
    """By the real program; the simulated engine has none."""
    sizes = []

    def answer(asked: dict[str, Any]) -> bytes:
        sizes.append(len(asked["input"]))
        data = [{"object": "embedding", "index": at, "embedding": [0.5]} for at in range(sizes[-1])]
        usage = {"prompt_tokens": 64 * sizes[-1], "total_tokens": 64 * sizes[-1]}
        return json.dumps({"object": "list", "data": data, "model": "demo", "usage": usage}).encode()

    with endpoint(200, answer, **{"Content-Type": "application/json"}) as url:
        what = asked(tmp_path, url, words, task="text-to-embeddings", scenario="E(64)", backend="openai")
        report, _ = run(what, program)
    measured = report.run
    assert measured is not None, report.message
    assert (measured.concurrency, measured.failed, measured.ttft, measured.itl) == (4, 0, None, None)
    assert measured.requests_rate > 0
    assert set(sizes[1:]) == {4}, "of so many texts at a time, after the one that tries"
    assert results.load(report.results).runs == (measured,)


def test_images_of_a_folder_are_sent_with_their_prompts(tmp_path: Path, program: Path, words: Path) -> None:
    seen: list[Any] = []

    def answer(asked: dict[str, Any]) -> bytes:
        content = asked["messages"][-1]["content"]
        seen.append([one["type"] for one in content] if isinstance(content, list) else content)
        return WORDS

    images = tmp_path / "images"
    images.mkdir()
    for name in ("a.png", "b.png"):
        imsave(images / name, [[0.0, 1.0], [1.0, 0.0]])
    (images / "metadata.csv").write_text("file_name,question\na.png,What is it?\nb.png,How many?\n")
    with endpoint(200, answer, **{"Content-Type": "text/event-stream"}) as url:
        what = asked(
            tmp_path,
            url,
            words,
            task="image-to-text",
            scenario="I(64,64)",
            dataset=str(images),
            columns={"prompt_column": "question"},
        )
        report, _ = run(what, program)
    assert report.run is not None, report.message
    assert report.run.failed == 0
    assert {"text", "image_url"} in [set(one) for one in seen if isinstance(one, list)]


def test_an_endpoint_that_refuses_never_answers_or_may_not_be_asked(
    tmp_path: Path, stand_in: Callable[[str], Path], words: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(measure, "ANSWER_WITHIN", 3.0)
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{listening.getsockname()[1]}"
        report, _ = run(asked(tmp_path, url, words), stand_in("exit 1"))
        assert (report.reason, report.retryable) == ("EndpointUnreachable", True), report.message
        listening.listen()
        report, _ = run(asked(tmp_path, url, words), stand_in("exit 1"))
        assert (report.reason, report.retryable) == ("EndpointSilent", True), report.message
        report, _ = run(asked(tmp_path, url, words, public=True), stand_in("exit 1"))
        assert (report.reason, report.retryable) == ("EndpointRefused", False), report.message
    report, _ = run(asked(tmp_path, "http://169.254.169.254", words), stand_in("exit 1"))
    assert report.reason == "EndpointRefused"


# The program, in the hands of others


@pytest.fixture(scope="module")
def good() -> Iterator[str]:
    """An endpoint that has nothing against one request."""
    with endpoint(200, USAGE) as url:
        yield url


@pytest.fixture
def stand_in(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """A script in the place of the program, which the real one cannot be made to be."""

    def made(script: str) -> Path:
        folder = tmp_path_factory.mktemp("program")
        (folder / "bin").mkdir()
        (folder / "lib/python3/site-packages/genai_bench-0.0.5.dist-info").mkdir(parents=True)
        executable = folder / "bin" / "genai-bench"
        executable.write_text(f"#!/bin/bash\n{script}\n")
        executable.chmod(0o755)
        return executable

    return made


@pytest.mark.parametrize(
    ("script", "reason", "retryable"),
    [
        ("kill -9 $$", "ProgramKilled", True),
        ("exit 0", "ResultMissing", True),
        ("exit 1", "ProgramFailed", True),
        ("echo 'Error: Invalid value'; exit 2", "WrongArguments", False),
        ("echo 'in validate_tokenizer'; echo 'OSError: no such model'; exit 1", "TokenizerMissing", False),
        ("echo 'Starting benchmark with'; echo 'No request metrics collected'; exit 1", "EndpointSilent", True),
        ("mkdir experiment; ln -s /etc/passwd experiment/x_time_1s.json; exit 0", "ResultMissing", True),
        ("mkdir experiment; echo '{\"a\": NaN}' > experiment/x_time_1s.json; exit 0", "ResultInvalid", True),
        ("head -c 300000 /dev/zero | tr '\\0' x; exit 1", "ProgramFailed", True),
    ],
)
def test_how_the_program_ends_is_told(
    tmp_path: Path,
    good: str,
    words: Path,
    stand_in: Callable[[str], Path],
    script: str,
    reason: str,
    retryable: bool,
) -> None:
    report, _ = run(asked(tmp_path, good, words), stand_in(script))
    assert (report.reason, report.retryable) == (reason, retryable), report.message
    assert not list(tmp_path.rglob("run.json"))


STUBBORN = 'trap "" TERM; sleep 1000 & echo $! > {pids}; echo $$ >> {pids}; echo "Starting benchmark with"; wait; wait'


def left(file: Path) -> list[psutil.Process]:
    """Those of its processes that do not go."""
    found = []
    for pid in pids(file):
        with contextlib.suppress(psutil.NoSuchProcess):
            found.append(psutil.Process(pid))
    return psutil.wait_procs(found, timeout=120)[1]


def pids(file: Path) -> list[int]:
    return [int(line) for line in file.read_text().split()] if file.exists() else []


def test_a_program_that_does_not_end_is_ended_with_all_its_children(
    tmp_path: Path,
    good: str,
    words: Path,
    stand_in: Callable[[str], Path],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(measure, "_GRACE", 0.3)
    monkeypatch.setattr(measure, "STARTS", -50)
    monkeypatch.setattr(measure, "ENDS", 0)
    file = tmp_path / "pids"
    report, _ = run(asked(tmp_path, good, words), stand_in(STUBBORN.format(pids=file)))
    assert (report.reason, report.retryable) == ("TimedOut", True)
    assert len(pids(file)) == 2
    assert not left(file)


def test_a_run_that_is_interrupted_leaves_no_process_and_says_so(
    tmp_path: Path, good: str, words: Path, stand_in: Callable[[str], Path]
) -> None:
    file, report = tmp_path / "pids", tmp_path / "report"
    program = stand_in(STUBBORN.format(pids=file).replace('trap "" TERM; ', ""))
    process = subprocess.Popen(
        [sys.executable, "-m", "modelyard.cli.main", "benchmarks", "measure", "--report", str(report)],
        env={
            **os.environ,
            MEASUREMENT: asked(tmp_path, good, words).model_dump_json(),
            "GENAI_BENCH": str(program),
        },
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    while "measuring" not in process.stdout.readline():
        assert process.poll() is None
    process.send_signal(signal.SIGTERM)
    assert process.wait(120) == 75
    assert json.loads(report.read_text())["reason"] == "Interrupted"
    assert not left(file)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"tokenizer": "/nowhere"}, "TokenizerMissing"),
        ({"tokenizer": "/tmp"}, "TokenizerMissing"),
        ({"tokenizer": "no/such/thing"}, "MeasurementInvalid"),
        ({"dataset": "/nowhere"}, "DatasetMissing"),
        ({"output": Output(uri="local:///x", folder="../up")}, "MeasurementInvalid"),
        ({"output": Output(uri="local:///proc/none", folder="f")}, "OutputNotFound"),
        ({"output": Output(uri="github://o/r", folder="f")}, "OutputUnsupported"),
        ({"output": Output(uri="hf://o/r", folder="f")}, "OutputUnsupported"),
        ({"output": Output(uri="vendor://a/b/c", folder="f")}, "OutputUnsupported"),
        ({"output": Output(uri="pvc://claim/path", folder="f")}, "OutputUnsupported"),
        ({"output": Output(uri="pvc://claim/path", folder="f", path="/dev/full/x")}, "OutputUnavailable"),
    ],
)
def test_what_cannot_work_is_refused_before_anything_runs(
    tmp_path: Path, words: Path, stand_in: Callable[[str], Path], changes: dict[str, Any], reason: str
) -> None:
    report, _ = run(asked(tmp_path, "http://127.0.0.1:9", words, **changes), stand_in("touch ran"))
    assert report.reason == reason, report.message


def test_without_the_program_it_is_said_how_to_get_it(tmp_path: Path, words: Path) -> None:
    report, _ = run(asked(tmp_path, "http://127.0.0.1:9", words), tmp_path / "bin/genai-bench")
    assert report.reason == "ProgramMissing"
    assert "GENAI_BENCH" in report.message
