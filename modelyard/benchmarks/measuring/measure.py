"""One run: the endpoint is tried, the program measures it, and what it leaves is stored; or why there is nothing.

The program has no time-out for a request, ends well where it should not, and takes a minute to find out what one
request tells: so one request goes before it, and a deadline and a reader of its log go beside it.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import select
import signal
import subprocess
import tempfile
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import IO, Any

import urllib3

from modelyard.benchmarks.measuring import datasets, results
from modelyard.benchmarks.measuring.outputs import checked_name, open_output
from modelyard.benchmarks.records import (
    MeasuredRun,
    MeasureError,
    Measurement,
    MeasurementReport,
    check_measurement,
    program,
    records,
    without,
)
from modelyard.hosts import HostsFile
from modelyard.models.sources import HttpPool, check_host
from modelyard.models.storage import FetchError, unexpected as unexpected_fault
from modelyard.objects import TERMINATION_MESSAGE_BYTES, timestamp
from modelyard.workloads.rendering import Refusal

Say = Callable[[str], None]
ASKED = "measurement.json"
TRIED_TOKENS = 4
"""Tokens of the answer to the request that goes before a run."""
ANSWER_WITHIN = 60.0
"""Seconds within which an endpoint answers one small request."""
STARTS, ENDS = 600, 300
"""Seconds that the program may take before and after it measures; on a slow disk it loads for minutes."""
_GRACE = 5.0
_EVERY = 5.0
_LINE = 1 << 16
_TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json", "tokenizer.model", "vocab.json", "spiece.model")
_CODE = re.compile(r"Received error response from server\. Error code: (-?\d{1,6})")
_VERSION = re.compile(r"genai_bench-(\d[\w.]*)\.dist-info")
_ERROR = re.compile(r"^(?:ERROR\s+.* - |Error: |[A-Za-z_.]*(?:Error|Exception): )(?P<what>.+)")


def name_of(asked: Measurement) -> str:
    """The folder of a run among the runs of its benchmark: what names it, where it can be part of a path."""
    scenario = re.sub(r"[^A-Za-z0-9]+", "_", asked.scenario).strip("_")
    return f"{scenario}-{asked.concurrency}"


def check_before(asked: Measurement) -> None:
    """Refuse a measurement that cannot yield a result. Raises ``MeasureError`` before anything is started."""
    try:
        check_measurement(asked)
    except Refusal as refusal:
        refused = refusal.refused
        output = refused.field.startswith("output")
        raise MeasureError(
            "OutputUnsupported" if output else "MeasurementInvalid",
            f"{refused.field}: {refused.problem}; {refused.remedy}",
        ) from None


def measure(asked: Measurement, executable: Path, environ: Mapping[str, str], say: Say) -> MeasurementReport:
    """Measure and store. What fails is in the report; only what ends this process is raised."""
    hidden = program.secrets(environ, datasets.credentials(asked, environ).values())
    try:
        run, where = _measured(asked, executable, environ, say, hidden)
    except MeasureError as error:
        return failed(error, hidden)
    return MeasurementReport(outcome="Measured", results=where, run=run)


def failed(error: MeasureError, hidden: tuple[str, ...] = ()) -> MeasurementReport:
    """The report of a measurement that did not succeed."""
    message = without(str(error), hidden)
    return MeasurementReport(outcome="Failed", reason=error.reason, message=message, retryable=error.retryable)


def unexpected(error: Exception, hidden: tuple[str, ...] = ()) -> MeasureError:
    """Return the error of a measurement for an exception that no part expects."""
    fault = unexpected_fault(error, hidden, "the pod's log has the traceback")
    reason = fault.reason if fault is error else "UnexpectedError"
    return MeasureError(reason, str(fault), retryable=fault.retryable)


def fitted(report: MeasurementReport) -> str:
    """The report as JSON, cut where a container's termination message ends."""
    while len(body := report.model_dump_json().encode()) > TERMINATION_MESSAGE_BYTES:
        report = report.model_copy(update={"message": report.message[: max(0, len(report.message) * 3 // 4)]})
    return body.decode()


def _measured(
    asked: Measurement, executable: Path, environ: Mapping[str, str], say: Say, hidden: tuple[str, ...]
) -> tuple[MeasuredRun, str]:
    place = f"{checked_name(asked.output.folder)}/{results.RUNS}/{name_of(asked)}"
    version = version_of(executable)
    with tempfile.TemporaryDirectory(prefix="modelyard-benchmark-") as name:
        folder = Path(name)
        dataset = datasets.options(asked, folder, environ)
        hosts = HostsFile.found()
        reached = asked.model_copy(update={"url": hosts.located(asked.url)}) if hosts is not None else asked
        arguments = program.command(reached, version, folder, dataset)
        variables = program.environment(environ, asked, folder, datasets.token(asked, environ))
        _check_tokenizer(asked.tokenizer)
        store = open_output(asked.output, environ)
        # Whether results can be stored is known before minutes are spent on them.
        store.write(f"{place}/{ASKED}", _json(records.cleaned(asked.model_dump(mode="json"), hidden)))
        store.names(f"{asked.output.folder}/{results.RUNS}")
        say(f"{asked.scenario} at {asked.concurrency} on {program.base(asked.url)}: trying one request")
        probe(reached, environ.get(program.KEY, ""))
        log = Log(asked, say)
        code = _run([str(executable), *arguments], variables, folder, log)
        found = records.result_file(folder)
        if log.guessed:
            raise _no_usage()
        if code != 0 or found is None:
            raise _why(asked, folder, code, log)
        file = records.cleaned(records.load(found), hidden)
        run = records.measured(asked, file, log.started, log.lost)
        if not log.enough:  # Its time has ended it: what was never answered the program drops without a word.
            try:
                probe(reached, environ.get(program.KEY, ""))
            except MeasureError as error:
                raise MeasureError(error.reason, f"after the run: {error}", retryable=error.retryable) from None
        # The program's files as it can read them again, and last the run as we tell it: what is there is whole.
        files, metadata = {found.name: file}, folder / program.FOLDER / records.METADATA
        if metadata.is_file():
            files[records.METADATA] = records.cleaned(records.load(metadata), hidden)
        for file_name, value in files.items():
            plain = re.sub(r"[^A-Za-z0-9._-]", "_", file_name)[-100:].lstrip("._-")
            store.write(f"{place}/{plain}", _json(value))
        made = {"program": f"genai-bench {version}", "measurement": asked.model_dump(mode="json")}
        store.write(f"{place}/{results.RUN}", _json(records.cleaned(made | {"run": run.model_dump()}, hidden)))
    results.summarize(store, asked.output.folder, name_of(asked))
    where = f"{asked.output.uri.rstrip('/')}/{asked.output.folder}"
    say(f"measured {run.requests} requests in {run.seconds:.1f} s, {run.failed} failed; results are in {where}")
    return run, where


def _json(value: Any) -> bytes:
    return json.dumps(value, indent=1, allow_nan=False).encode()


def version_of(executable: Path) -> str:
    """The program's version, of the packages beside it: asking it takes as long as starting it."""
    for folder in executable.parent.parent.glob("lib/python*/site-packages/genai_bench-*.dist-info"):
        if (found := _VERSION.fullmatch(folder.name)) and os.access(executable, os.X_OK):
            return found[1]
    raise MeasureError(
        "ProgramMissing",
        f"{executable}: no genai-bench in a virtual environment; use an image that has it, or set GENAI_BENCH to it",
    )


def _check_tokenizer(name: str) -> None:
    if program.of_hub(name):
        return
    folder = Path(name)
    if not any((folder / file).is_file() for file in _TOKENIZER_FILES):
        what = "has no tokenizer" if folder.is_dir() else "does not exist"
        raise MeasureError(
            "TokenizerMissing",
            f"tokenizer: {name} {what} ({', '.join(_TOKENIZER_FILES[:3])}); bring the model's files with its tokenizer,"
            " or name one of a hub",
        )


# The endpoint


def probe(asked: Measurement, key: str) -> None:
    """One small request, as the program would send it. Raises ``MeasureError`` for what would spoil the run."""
    if asked.backend.lower() not in program.OPENAI or asked.task == "image-to-embeddings":
        return
    url = program.base(asked.url)
    batched = asked.task in program.BATCHED
    body: dict[str, Any] = {"model": asked.model, "input": ["Hello"]}
    more = program.request_parameters(asked.request_parameters)
    if not batched:
        body = {"model": asked.model, "messages": [{"role": "user", "content": "Hello"}]}
        body |= {"max_tokens": max(TRIED_TOKENS, int(more.get("min_tokens", 0)))}
        body |= {"stream": True, "stream_options": {"include_usage": True}}
    # Every request of the run carries these, so one that the endpoint refuses would fail them all.
    body |= {name: value for name, value in more.items() if name not in program.NOT_SENT}
    path = "/v1/embeddings" if batched else "/v1/chat/completions"
    headers = {"Authorization": f"Bearer {key or program.NO_KEY}", "Content-Type": "application/json"}
    try:
        check_host(url, asked.public)
        answer = HttpPool(asked.public, read=ANSWER_WITHIN).request(
            "POST", url + path, body=json.dumps(body), headers=headers, redirect=False, preload_content=False
        )
        with contextlib.closing(answer):
            text = _bounded(answer)
    except FetchError as error:
        raise MeasureError("EndpointRefused", f"endpoint {url}: {error}") from None
    except urllib3.exceptions.ReadTimeoutError:
        raise _silent(asked, f"no answer within {ANSWER_WITHIN:.0f} s") from None
    except (urllib3.exceptions.HTTPError, OSError) as error:
        why = (str(error).splitlines() or [type(error).__name__])[0][:300]
        raise MeasureError(
            "EndpointUnreachable", f"endpoint {url}: {why}; is the service ready, and its port right?", retryable=True
        ) from None
    if answer.status != 200:
        _refused(asked, answer.status, text)
    if not batched and not text.lstrip().startswith((b"data:", b":", b"event:", b"id:", b"retry:")):
        raise MeasureError(
            "StreamMissing",
            f"endpoint {url}: {text[:60].decode('utf-8', 'replace')!r} is no stream of events; only an endpoint that"
            " honours stream: true has a TTFT and an ITL",
        )
    if not batched and b'"completion_tokens"' not in text:
        raise _no_usage()


def _bounded(answer: urllib3.BaseHTTPResponse) -> bytes:
    body, deadline = bytearray(), time.monotonic() + ANSWER_WITHIN
    for piece in answer.stream(_LINE):
        body += piece
        if len(body) > 1 << 20 or b"data: [DONE]" in body:
            break
        if time.monotonic() > deadline:
            raise urllib3.exceptions.ReadTimeoutError(None, None, "still answering")  # type: ignore[arg-type]
    return bytes(body)


def _refused(asked: Measurement, status: int, text: bytes) -> None:
    said = text[:300].decode("utf-8", "replace")
    what = f"endpoint {program.base(asked.url)}, model {asked.model!r}: HTTP {status}"
    if status >= 500 or status in (408, 425, 429):
        raise MeasureError("EndpointFailing", f"{what}; look at the service's logs: {said}", retryable=True)
    remedy = "check url, modelName and additionalRequestParams"
    if status in (401, 403):
        remedy = f"give its key as {program.KEY}"
    elif 300 <= status < 400:
        remedy = "it sends elsewhere; give that address as url"
    raise MeasureError("EndpointRefused", f"{what}; {remedy}: {said}")


def _silent(asked: Measurement, what: str) -> MeasureError:
    return MeasureError(
        "EndpointSilent", f"endpoint {program.base(asked.url)}: {what}; look at the service's queue", retryable=True
    )


def _no_usage() -> MeasureError:
    return MeasureError(
        "UsageMissing",
        "the endpoint's stream ends without usage, so its tokens could only be guessed; it must honour"
        " stream_options.include_usage",
    )


# The program


class Log:
    """What the program says, line by line: kept for whoever asks why, told in words, counted."""

    def __init__(self, asked: Measurement, say: Say) -> None:
        self._asked, self._say = asked, say
        self.started, self._since, self._told = "", 0.0, time.monotonic()
        self.codes: Counter[int] = Counter()
        self.lost, self.guessed, self.enough = 0, False, False
        self.last: deque[str] = deque(maxlen=200)

    def hear(self, line: str) -> None:
        """One line of it."""
        self.last.append(line)
        if found := _CODE.search(line):
            self.codes[int(found[1])] += 1
        elif line.startswith("ERROR") and " - locust.user" in line:
            self.lost += 1
        elif "There is no usage info" in line:
            self.guessed = True
        elif "Exit the run as " in line:
            self.enough = True
        elif "Starting benchmark with" in line:
            self.started = timestamp(time.time())
            self._since = self._told = time.monotonic()
            most = f"{self._asked.requests} requests or {self._asked.minutes} min"
            self._say(f"measuring {self._asked.scenario} at {self._asked.concurrency}, until {most}")
        elif " has finished after " in line:
            self._say("the requests are over; the program sums up")
            self._since = 0.0

    def tick(self) -> None:
        """Say now and then how it goes."""
        if self._since and time.monotonic() - self._told > _EVERY:
            self._told = time.monotonic()
            failed = f"; failed: {records.told(self.codes)}" if self.codes else ""
            self._say(f"measuring for {self._told - self._since:.0f} s of at most {self._asked.minutes * 60}{failed}")

    def why(self) -> str:
        """The last line that says what is wrong."""
        found = (_ERROR.match(line) for line in reversed(self.last))
        return next((one["what"][:600] for one in found if one), "")


def _run(command: list[str], variables: Mapping[str, str], folder: Path, log: Log) -> int:
    """The exit status of the program, with its whole group gone when this returns or is interrupted."""
    allowed = STARTS + log._asked.minutes * 60 + ENDS
    deadline = time.monotonic() + allowed
    process = subprocess.Popen(
        command,
        env=dict(variables),
        cwd=folder,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )
    try:
        assert process.stdout is not None
        for line in _lines(process.stdout, process):
            if line is not None:
                log.hear(line)
            log.tick()
            if time.monotonic() > deadline:
                raise MeasureError("TimedOut", f"the program did not end within {allowed} s", retryable=True)
        return process.wait()
    finally:
        _end(process)


def _lines(pipe: IO[bytes], process: subprocess.Popen[bytes]) -> Iterator[str | None]:
    """Lines as they come, cut where they are long; ``None`` once in a while. Ends with the process."""
    os.set_blocking(pipe.fileno(), False)
    rest = b""
    while True:
        over = process.poll() is not None
        select.select([pipe], (), (), 0 if over else 0.5)
        piece = pipe.read(_LINE) or b""
        *whole, rest = (rest + piece).split(b"\n")
        yield from (line[:_LINE].decode("utf-8", "replace") for line in whole)
        rest = rest[-_LINE:]
        if not piece:
            if over:
                yield rest.decode("utf-8", "replace")
                return
            time.sleep(0.05)
        yield None


def _end(process: subprocess.Popen[bytes]) -> None:
    for number in (signal.SIGTERM, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, number)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(_GRACE)
            if number is signal.SIGTERM and _alone(process.pid):
                return


def _alone(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return True
    return False


def _why(asked: Measurement, folder: Path, code: int, log: Log) -> MeasureError:
    said = log.why()
    tail = f": {said}" if said else ""
    if code < 0:
        name = signal.strsignal(-code) or str(-code)
        hint = "; give the pod more memory" if -code == signal.SIGKILL else ""
        return MeasureError("ProgramKilled", f"the program was ended by a signal ({name}){hint}", retryable=True)
    for path in sorted((folder / program.FOLDER).glob("debug_for_run_*.json"))[:1]:
        try:
            answered, codes, first = records.failures(records.load(path), log.lost)
            records.check_errors(asked, answered, codes, first)
            records.check_stream(asked, records.load(path))
        except MeasureError as error:
            return error
        return MeasureError(
            "ResultMissing",
            f"{answered} requests were answered, but not so that they could be measured; ask for more output tokens in"
            f" the scenario{tail}",
        )
    if code == 2:
        return MeasureError("WrongArguments", f"the program refuses its options{tail}")
    text = "\n".join(log.last)
    if not log.started and ("validate_tokenizer" in text or "AutoTokenizer" in text):
        return MeasureError("TokenizerMissing", f"the tokenizer {asked.tokenizer} cannot be loaded{tail}")
    if log.started and "No request metrics collected" in text:
        if log.lost:
            lost = Counter({0: log.lost})
            with contextlib.suppress(MeasureError):
                records.check_errors(asked, 0, lost, said)
        return _silent(asked, f"no request was answered within {asked.minutes} min")
    if code == 0:
        return MeasureError("ResultMissing", "the program has ended well and left no result", retryable=True)
    return MeasureError("ProgramFailed", f"the program has ended with status {code}{tail}", retryable=True)
