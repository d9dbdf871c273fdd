"""A cluster in memory for BenchmarkJobs: what a plan writes is there at the next look, and runs end when told to."""

from __future__ import annotations

from typing import Any

from plan_details import remember_details
from service_world import NOW, Fleet

from modelyard.benchmarks.jobs.lifecycle import BenchmarkRuns
from modelyard.benchmarks.jobs.story import Here
from modelyard.benchmarks.records.values import MEASUREMENT, LatencySpread, MeasuredRun, Measurement, MeasurementReport
from modelyard.objects import Key
from modelyard.reconcile.plans.plan import Plan

SPREAD = LatencySpread(mean=0.1, p50=0.1, p90=0.2, p95=0.25, p99=0.4)
BETWEEN = LatencySpread(mean=0.002, p50=0.002, p90=0.002, p95=0.003, p99=0.004)
WHOLE = LatencySpread(mean=0.298, p50=0.3, p90=0.4, p95=0.45, p99=0.6)
OUTPUT = {"storageUri": "pvc://results/llama"}
__all__ = ["NOW", "OUTPUT", "SPREAD", "Benchmarks", "run"]


def run(scenario: str, concurrency: int, **more: Any) -> MeasuredRun:
    """What a run has measured."""
    body: dict[str, Any] = {
        "scenario": scenario,
        "concurrency": concurrency,
        "started": "2026-11-23T22:00:00Z",
        "requests": 200,
        "failed": 0,
        "output_rate": 100.0 * concurrency,
        "prompt_tokens": 100.0,
        "output_tokens": 100.0,
        "latency": WHOLE,
        "ttft": SPREAD,
        "itl": BETWEEN,
    } | more
    body = {"requests_rate": body["output_rate"] / 100} | body
    return MeasuredRun(**({"seconds": 200 / body["requests_rate"]} | body))


class Benchmarks(Fleet):
    """One service that is ready, one claim for results; ``name`` is the BenchmarkJob that is looked at."""

    name = "bench"

    def __init__(self) -> None:
        super().__init__()
        self.lifecycle = BenchmarkRuns("home")
        self.details = remember_details(self.lifecycle)
        self.put("Namespace", "shop")
        self.put(
            "ClusterBaseModel", "llama", spec={"storage": {"storageUri": "hf://meta/llama", "path": "/mnt/models/l"}}
        )
        self.put("PersistentVolumeClaim", "results", "shop", status={"phase": "Bound"})
        self.served()

    def served(self, name: str = "chat", namespace: str = "shop", *, ready: str = "True", pods: int = 1) -> None:
        """A service that is ready, with so many pods."""
        status = {
            "url": f"http://{name}.{namespace}.svc.cluster.local:8080",
            "observedGeneration": self.objects.get(("InferenceService", namespace, name), {"metadata": {}})[
                "metadata"
            ].get("generation", 0)
            + 1,
            "conditions": [{"type": "Ready", "status": ready, "message": "engine: 0 of 1 pods are ready"}],
            "annotations": {"modelyard.dev/model": "ClusterBaseModel/llama@1", "modelyard.dev/runtime": "R/small@1"},
        }
        self.put("InferenceService", name, namespace, spec={"model": {"name": "llama"}, "engine": {}}, status=status)
        for one in [key for key in self.objects if key[0] == "Pod" and key[1] == namespace and name in key[2]]:
            del self.objects[one]
        for number in range(pods):
            self.engine(f"{name}-{number}", name, namespace)

    def engine(self, pod: str, service: str = "chat", namespace: str = "shop", *, restarts: int = 0) -> None:
        labels = {"ome.io/inferenceservice": service, "component": "engine"}
        args = ["--model=$(MODEL_PATH)", "--served-model-name", "llama-8b"]
        status = {
            "phase": "Running",
            "conditions": [{"type": "Ready", "status": "True"}],
            "containerStatuses": [{"restartCount": restarts}],
        }
        self.put(
            "Pod", pod, namespace, spec={"containers": [{"args": args}]}, status=status, metadata={"labels": labels}
        )

    def benchmark(self, namespace: str = "shop", annotations: Any = None, **spec: Any) -> None:
        """The BenchmarkJob: two scenarios at one level, of the service, unless ``spec`` says otherwise."""
        body = {
            "endpoint": {"inferenceService": {"name": "chat", "namespace": "shop"}},
            "task": "text-to-text",
            "trafficScenarios": ["D(100,100)", "D(10,10)"],
            "numConcurrency": [4],
            "maxTimePerIteration": 5,
            "maxRequestsPerIteration": 200,
            "outputLocation": OUTPUT,
            **spec,
        }
        body = {name: value for name, value in body.items() if value is not None}
        before = self.objects.get(("BenchmarkJob", namespace, self.name), {})
        noted = {**before.get("metadata", {}).get("annotations", {}), **(annotations or {})}
        status = before.get("status", {})
        self.put("BenchmarkJob", self.name, namespace, spec=body, status=status, metadata={"annotations": noted})

    def step(self, now: float = NOW) -> Plan | None:
        return self.settle(self.name, "shop", now)

    @property
    def here(self) -> Here:
        here: Here = self.details[Key("shop", self.name)]
        return here

    @property
    def said(self) -> dict[str, Any]:
        """Its status."""
        found: dict[str, Any] = self.objects["BenchmarkJob", "shop", self.name]["status"]
        return found

    def told(self, kind: str) -> tuple[str, str, str]:
        one = next(c for c in self.said["conditions"] if c["type"] == kind)
        return one["status"], one["reason"], one["message"]

    def jobs(self) -> list[dict[str, Any]]:
        return [one for (kind, _, _), one in self.objects.items() if kind == "Job"]

    def job(self) -> dict[str, Any]:
        (one,) = [job for job in self.jobs() if not job.get("status")]
        return one

    def asked(self) -> Measurement:
        """What the Job that is under way measures, as its process reads it."""
        (container,) = self.job()["spec"]["template"]["spec"]["containers"]
        (text,) = [one["value"] for one in container["env"] if one["name"] == MEASUREMENT]
        return Measurement.model_validate_json(text.replace("$$", "$"))

    def ends(self, report: MeasurementReport | str | None = None, *, now: float = NOW, **more: Any) -> None:
        """The Job that is under way ends, with this report (none given: all is well; of ``more``)."""
        job, asked = self.job(), self.asked()
        if report is None:
            measured = run(asked.scenario, asked.concurrency, **more)
            report = MeasurementReport(outcome="Measured", results="pvc://results/llama/x", run=measured)
        said = report if isinstance(report, str) else report.model_dump_json()
        owner = {"kind": "Job", "uid": job["metadata"]["uid"], "name": "j", "controller": True}
        state = {"terminated": {"exitCode": 0, "message": said}}
        self.put(
            "Pod",
            f"{job['metadata']['name']}-pod",
            job["metadata"]["namespace"],
            spec={},
            status={"phase": "Succeeded", "containerStatuses": [{"state": state}]},
            metadata={"labels": job["metadata"]["labels"], "ownerReferences": [owner]},
        )
        self.finish(job, "Complete")

    def finish(self, job: dict[str, Any], how: str, message: str = "") -> None:
        condition = {"type": how, "status": "True", "message": message, "lastTransitionTime": "2027-01-15T08:00:00Z"}
        job["status"] = {"conditions": [condition]}
