"""Fair shares between owners: namespaces, clients, users and servers.

A tenant with thousands of objects must not delay a tenant with one. Pure; an owner is any hashable name.

- ``interleave`` orders work round-robin by owner, up to a limit each: writes, Events, run starts, look-ups.
- ``RoundRobin`` visits more items than fit into one round, and continues where the last round stopped.
- ``divide`` splits a number of places by max-min fairness.
- ``WorkBudget`` bounds work by counting it; ``grant_work`` gives each owner its share of it, the longest wait first.
- ``SharedCapacity`` counts the places or bytes that are in use, in total and by owner.
- ``FairQueue`` serves the owner that used least; ``DecayingUsage`` and ``StartTimeFairQueue`` say what use is.
"""

from modelyard.fairness.budgets import WorkBudget, WorkRequest, grant_work
from modelyard.fairness.capacity import SharedCapacity
from modelyard.fairness.ordering import RoundRobin, by_owner, divide, interleave
from modelyard.fairness.queues import OLDEST_EVERY, DecayingUsage, FairQueue, StartTimeFairQueue, Ticket

__all__ = [
    "OLDEST_EVERY",
    "DecayingUsage",
    "FairQueue",
    "RoundRobin",
    "SharedCapacity",
    "StartTimeFairQueue",
    "Ticket",
    "WorkBudget",
    "WorkRequest",
    "by_owner",
    "divide",
    "grant_work",
    "interleave",
]
