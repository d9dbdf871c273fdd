"""What replicas of a router share through Redis: budgets of tokens, and how many requests each has under way. Pure.

Here is what is asked of Redis and what its answers mean; ``router.process.redis_sharing`` asks. A budget is one hash
and one script, so that both buckets are checked before either is taken, whoever else asks at that moment, by the
clock of the Redis server. A Redis may be a tenant's own: each of its answers is checked, and one that cannot be true is
no answer. Source: kthena-routing, 10.4 and 23.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import orjson

from modelyard.backoff import Backoff
from modelyard.objects import Key
from modelyard.routing.limits import Budget, OverBudget
from modelyard.routing.seams import Left

_PAUSES = Backoff(0.5, longest=5.0)
"""Delays between requests to a Redis that does not answer."""
SCRIPT = """
local unit, tokens_in, tokens_out = tonumber(ARGV[2]), tonumber(ARGV[8]), tonumber(ARGV[9])
local clock = redis.call('TIME')
local now = tonumber(ARGV[10]) or clock[1] + clock[2] / 1e6
local kept = redis.call('HMGET', KEYS[1], 'at', 'unit', 'input', 'input_limit', 'output', 'output_limit')

local function number(text, least)
  local value = tonumber(text)
  if value and value >= least and value <= 1e16 then return value end
end

local at, old_unit = number(kept[1], 0) or now, number(kept[2], 1) or unit

local function level(kept_level, kept_limit, limit, first)
  local value, old = number(kept_level, -1e16), number(kept_limit, 1)
  if not value or not old then return math.min(limit, first) end
  value = math.min(old, value + math.max(0, now - at) * old / old_unit)
  if old == limit and old_unit == unit then return value end
  return value / old * limit
end

local into, out = tonumber(ARGV[4]), tonumber(ARGV[6])
local input = into and level(kept[3], kept[4], into, tonumber(ARGV[5]))
local output = out and level(kept[5], kept[6], out, tonumber(ARGV[7]))
local refused = 0
if ARGV[1] == 'take' then
  if into and tokens_in > input then refused = 1 elseif out and output < 1 then refused = 2 end
end
if refused == 0 then
  input = into and math.min(into, input - tokens_in)
  output = out and math.min(out, output - tokens_out)
end

local function text(number) return number and string.format('%.17g', number) or '' end
redis.call('DEL', KEYS[1])
redis.call('HSET', KEYS[1], 'at', text(now), 'unit', unit)
if into then redis.call('HSET', KEYS[1], 'input', text(input), 'input_limit', into) end
if out then redis.call('HSET', KEYS[1], 'output', text(output), 'output_limit', out) end
redis.call('EXPIRE', KEYS[1], ARGV[3])
return {refused, text(input), text(output), ARGV[11]}
"""
"""Key: the budget's hash. Arguments: those of ``arguments``. Answers which bucket refuses, and what is left of both, as
text, because Redis cuts a number's fraction off; and the mark of the request.

Time that the server's clock goes back fills nothing, and costs no more than the filling of that time. A leap forward
fills the buckets at most once.
"""
_MOST_LEVEL = 1e16
_SLACK = 1e-6

IN_FLIGHT = "modelyard:in-flight"
"""The hash with a field for each replica of the router."""
LEASE = 5.0
"""Seconds after which the requests of a replica that tells nothing new count no more."""


Levels = tuple[float | None, float | None]
"""Tokens that are left for input and output; ``None``: no limit."""


def lifetime(seconds: int) -> int:
    """Seconds after which a budget that nobody uses is forgotten: three units, from ten minutes to 90 days."""
    return min(max(3 * seconds, 600), 7_776_000)


def key(route: Key) -> str:
    """The name under which the budget of a route is kept."""
    return f"modelyard:limits:{route.namespace}/{route.name}"


def arguments(
    budget: Budget,
    left: Levels,
    tokens: float,
    output: float = 0,
    *,
    check: bool = False,
    now: float | None = None,
    mark: str = "",
) -> list[str]:
    """The script's arguments, to take so many tokens, if they are there or (without ``check``) into debt.

    ``left`` is how full the buckets are to be where Redis knows nothing of them: what this replica counted itself, so
    that a Redis that has lost its memory forgives no debt. ``now`` stands in for the server's clock. ``mark`` is
    answered as it is: by it an answer is known to be that to this request.
    """
    told = ("take" if check else "settle", budget.seconds, lifetime(budget.seconds))
    buckets = (budget.input, left[0], budget.output, left[1])
    return ["" if value is None else str(value) for value in (*told, *buckets, tokens, output, now, mark)]


def answer(
    reply: Any, budget: Budget, tokens: float, *, check: bool = False, mark: str = ""
) -> tuple[OverBudget | None, Levels]:
    """Return which bucket refuses, if any, and what is left of both.

    Raises ``ValueError``: the answer of another script, to another request, or one that cannot be true.
    """
    if not isinstance(reply, list) or len(reply) != 4 or not all(isinstance(part, int | bytes) for part in reply):
        raise ValueError("what it answered is no budget")
    refused, *left, answered = reply
    if answered != mark.encode():
        raise ValueError("what it answered is of another request")
    into, out = (_level(text, limit) for text, limit in zip(left, budget[:2], strict=True))
    if refused == 1 and into is not None and budget.input is not None and tokens > into:
        wait = None if tokens > budget.input else (tokens - into) * budget.seconds / budget.input
        return OverBudget("input", wait), (into, out)
    if refused == 2 and out is not None and budget.output is not None and out < 1:
        return OverBudget("output", (1 - out) * budget.seconds / budget.output), (into, out)
    if refused != 0 or (check and ((into is not None and into < -_SLACK) or (out is not None and out < 1 - _SLACK))):
        raise ValueError("what it answered contradicts itself")
    return None, (into, out)


def _level(text: int | bytes, limit: int | None) -> float | None:
    if limit is None:
        if text != b"":
            raise ValueError("it answered a budget that there is not")
        return None
    if not isinstance(text, bytes) or len(text) > 32:
        raise ValueError("what it answered is no budget")
    level = float(text)
    if not -_MOST_LEVEL <= level <= limit + _SLACK * limit:
        raise ValueError(f"{level:g} tokens are not left of a budget of {limit}")
    return level


def levels(told: Left | OverBudget, budget: Budget) -> Levels:
    """How full the buckets of a store are, by what it says to a request of no tokens."""
    if isinstance(told, Left):
        return told
    into, out = budget.input, budget.output
    if told.kind == "input" and into is not None:
        return -(told.retry_after or 0.0) * into / budget.seconds, out
    return into, None if out is None else 1 - (told.retry_after or 0.0) * out / budget.seconds


_LABEL = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")


def own_address(route: Key, address: str) -> bool:
    """Whether ``host:port`` is a Service of the route's namespace, by a name that says so.

    The name is a label and nothing else: of one with ``/`` or ``?`` in it a URL would make another host.
    """
    name, _, rest = address.rpartition(":")[0].partition(".")
    tails = ("", ".svc", ".svc.cluster.local")
    return _LABEL.fullmatch(name) is not None and rest in {f"{route.namespace}{tail}" for tail in tails}


def redis_url(route: Key, address: str, servers: Mapping[str, str]) -> str | None:
    """Return the URL for the Redis that a route names; ``None``: a router must not connect there.

    ``servers`` holds the URLs of the router's configuration, by address.
    """
    url = servers.get(address)
    return f"redis://{address}" if url is None and own_address(route, address) else url


@dataclass(slots=True)
class Breaker:
    """Whether something outside is worth asking: not for a while after it failed, then by one request at a time.

    The pause ends with the first answer.
    """

    failures: int = 0
    again: float = 0.0

    def asks(self, now: float) -> bool:
        """Whether to ask now. During a failure whoever is told yes asks for all."""
        if not self.failures:
            return True
        if now < self.again:
            return False
        self.again = now + _PAUSES.delay(self.failures)
        return True

    def failed(self, now: float) -> None:
        """It did not answer, or not in time."""
        self.failures += 1
        self.again = now + _PAUSES.delay(self.failures)

    def worked(self) -> None:
        """It answered."""
        self.failures = 0


class OthersInFlight:
    """The requests that other replicas of the router have under way, from what each tells of itself.

    No clock is shared: one whose telling does not change for ``LEASE`` seconds is gone, and so are its requests.
    """

    def __init__(self, me: str) -> None:
        self._me = me
        self._turn = 0
        self._seen: dict[str, tuple[bytes, float]] = {}

    def tell(self, counts: Mapping[Key, int]) -> bytes:
        """What this replica says of itself: different from call to call, so that it is seen to be alive."""
        self._turn += 1
        pods = {f"{pod.namespace}/{pod.name}": count for pod, count in counts.items() if count > 0}
        return orjson.dumps({"turn": self._turn, "pods": pods})

    def hear(self, told: Mapping[str, bytes], now: float) -> list[str]:
        """Take what all replicas say; returns those long gone, whose fields can be removed."""
        for name, text in told.items():
            if name != self._me and self._seen.get(name, (b"", 0.0))[0] != text:
                self._seen[name] = text, now
        gone = [name for name, (_, at) in self._seen.items() if now - at > 12 * LEASE]
        self._seen = {name: seen for name, seen in self._seen.items() if name in told and name not in gone}
        return gone

    def counts(self, now: float) -> dict[Key, int]:
        """Requests under way elsewhere, by pod."""
        found: dict[Key, int] = {}
        for text, at in self._seen.values():
            if now - at > LEASE:
                continue
            try:
                pods = orjson.loads(text)["pods"].items()
            except (orjson.JSONDecodeError, AttributeError, KeyError, TypeError):
                continue  # not a replica of this version
            for name, count in pods:
                namespace, _, pod = name.partition("/")
                if isinstance(count, int) and count > 0:
                    found[Key(namespace, pod)] = found.get(Key(namespace, pod), 0) + count
        return found
