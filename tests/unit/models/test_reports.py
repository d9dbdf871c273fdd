"""What a job leaves behind: a report that a termination message can hold, whatever is in it."""

from __future__ import annotations

import json

from hypothesis import given, strategies as st

from modelyard.models.download.node import Report
from modelyard.models.sources.http import of_status, retry_after
from modelyard.models.storage.errors import FetchError
from modelyard.objects.documents import printable
from modelyard.objects.limits import TERMINATION_MESSAGE_BYTES


@given(st.text(max_size=9000), st.dictionaries(st.text(max_size=50), st.text(max_size=500), max_size=20))
def test_a_report_fits_a_termination_message(message: str, facts: dict[str, str]) -> None:
    report = Report(facts=dict(facts))
    report.fail(FetchError("NotFound", message))
    body = report.dump()
    assert len(body.encode()) <= TERMINATION_MESSAGE_BYTES
    read = json.loads(body)
    assert (read["outcome"], read["reason"]) == ("Failed", "NotFound")
    assert read["message"][:20] == printable(message)[:20]
    assert read["facts"] in (facts, {})


@given(st.text(max_size=40), st.text(max_size=60))
def test_whatever_a_server_says_of_waiting_is_seconds_or_nothing(wait: str, limit: str) -> None:
    found = retry_after({"Retry-After": wait, "RateLimit": limit})
    assert found is None or found >= 0


def test_how_long_servers_ask_to_wait() -> None:
    assert retry_after({"Retry-After": "120"}) == 120
    assert retry_after({"Retry-After": "Wed, 21 Oct 2015 07:28:00 GMT"}) == 0
    by_server = {"Retry-After": "Wed, 21 Oct 2015 07:28:30 GMT", "Date": "Wed, 21 Oct 2015 07:28:00 GMT"}
    assert retry_after(by_server) == 30, "whatever this machine takes the time to be"
    assert retry_after({"Retry-After": "soon"}) is None
    assert retry_after({"RateLimit": '"api";r=0;t=55'}) == 55
    assert retry_after({}) is None


def test_a_node_whose_clock_is_wrong_tries_again_and_says_so() -> None:
    error = of_status(403, "s3://bucket/key", "RequestTimeTooSkewed")
    assert (error.reason, error.retryable) == ("SourceUnavailable", True)
    assert "clock of this node" in str(error)
