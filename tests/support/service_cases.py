"""Services that are rendered in tests: each folder of ``golden`` has the manifests and what comes of them.

``python tests/support/service_cases.py`` writes what comes of them anew, to be read before it is committed.
"""

from __future__ import annotations

from pathlib import Path

import yaml

from modelyard.autoscaling.offline.manifests import read_manifests
from modelyard.cli.services import BEFORE_1_21, CURRENT, outcome
from modelyard.workloads.rendering.values import Refused, Rendered

GOLDEN = Path(__file__).parents[1] / "unit" / "workloads" / "golden"
CASES = sorted(folder.name for folder in GOLDEN.iterdir())


def rendered(case: str, old: bool = False) -> Rendered | Refused:
    """``old``: for a server like that of the tests."""
    found = read_manifests([GOLDEN / case / "in.yaml"])
    (service,) = [one for one in found if one.kind == "InferenceService"]
    return outcome(service, found, BEFORE_1_21 if old or case.endswith("before-1-21") else CURRENT)


def written(result: Rendered | Refused) -> str:
    """What is reviewed: the summary first, then every child."""
    assert isinstance(result, Rendered), result
    summary = {
        "modes": dict(result.modes),
        "entry": result.entry,
        "url": result.url,
        "address": result.address,
        "retired": [f"{one.kind} {one.name} after {', '.join(one.after)}" for one in result.retired],
        "notes": [f"{one.reason}: {one.message}" for one in result.notes],
        "waits": {f"{one.kind} {one.name}": list(one.after) for one in result.children if one.after},
    }
    documents = [{name: value for name, value in summary.items() if value}, *(one.body for one in result.children)]
    return yaml.dump_all(documents, Dumper=_Dumper, sort_keys=True, width=120, allow_unicode=True)


class _Dumper(yaml.SafeDumper):
    def ignore_aliases(self, data: object) -> bool:
        return True


if __name__ == "__main__":
    for name in CASES:
        (GOLDEN / name / "out.yaml").write_text(written(rendered(name)), encoding="utf-8")
