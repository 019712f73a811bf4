"""One case after the other: logged, released, compared with pyfunc, measured, and removed from the stack."""

import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from benchmarks.production import remove_model
from benchmarks.protocols import request_bytes
from benchmarks.server_comparison import Effort, measure
from benchmarks.sides import Side
from benchmarks.subjects import FULL_SPEC, QUICK_SPEC, Failed, wait_for
from benchmarks.zoo.answers import difference, named
from benchmarks.zoo.case import Case, Logged
from benchmarks.zoo.results import Result
from shiplift.pipelines.engines.local import stack
from shiplift.pipelines.engines.local.releases import Releases
from shiplift.runtime.base.names import release_name, serving_name
from shiplift.runtime.model.tensors import Arrays
from shiplift.runtime.records.kinds.package import Package
from shiplift.runtime.records.release import ReleaseReport
from shiplift.runtime.records.tensor import Signature
from shiplift.runtime.serving.machine.served import served
from shiplift.runtime.serving.triton.client import TOLERANCE, TritonClient, as_tensor, infer_one_by_one

CLIENTS = 16
_QUICK = "\n".join((QUICK_SPEC, "slo: {regression: {p99_percent: 1000, throughput_percent: 1000, score: 1}}"))


@dataclass(frozen=True, kw_only=True)
class Runner:
    """Runs cases on the stack of a home, quickly or not."""

    home: Path
    running: stack.Stack
    quick: bool

    def run(self, case: Case) -> Result:
        """Runs a case; whatever goes wrong with it is in its result."""
        started = time.monotonic()
        try:
            with TemporaryDirectory(prefix="zoo-case-") as folder:
                result = self._released(case, Path(folder))
        except Exception as error:  # a case must not end the others
            reason = " ".join(f"{type(error).__name__}: {error}".split())[:600]
            result = Result(name=case.name, flavor=case.flavor, outcome="failed", reason=reason)
        finally:
            remove_model(self.home, self.running, case.name)
        seconds = result.seconds or round(time.monotonic() - started, 1)
        return result.model_copy(update={"seconds": seconds, "quick": self.quick})

    def _released(self, case: Case, folder: Path) -> Result:
        built = folder / "built"
        built.mkdir()
        logged = case.build(built)
        version = self._log(case, logged)
        report = wait_for(Releases(self.home), release_name(case.name, version, ""))
        result = judged(case, report)
        if result.outcome != "promoted":
            return result
        package = self._package(case)
        asked = pyfunc(case, version, logged)
        expected = logged.original if logged.original is not None else asked.answer
        absolute, relative = difference(expected, self._answers(case, logged.inputs))
        result = result.model_copy(
            update={
                "served": f"{package.engine} {package.precision}",
                "max_difference": absolute,
                "pyfunc_throughput": asked.throughput(3 if self.quick else 6),
            }
        )
        if not relative <= TOLERANCE[package.precision]:
            reason = f"production in {package.precision} answers otherwise than pyfunc: relative {relative:.3g}"
            return result.model_copy(update={"outcome": "failed", "reason": reason})
        return result.model_copy(update={"throughput": self._throughput(case, logged.inputs, folder)})

    def _log(self, case: Case, logged: Logged) -> int:
        import mlflow

        mlflow.set_tracking_uri(self.running.registry_uri)
        mlflow.set_registry_uri(self.running.registry_uri)
        spec = merged(_QUICK if self.quick else FULL_SPEC, case.spec)
        with mlflow.start_run():
            mlflow.log_text(spec, "shiplift/shiplift.yaml")
            info = logged.log(name="model", registered_model_name=case.name)
        return int(info.registered_model_version)

    def _package(self, case: Case) -> Package:
        state = served(self.home, case.name)
        if state is None:
            raise Failed("the release says promoted, but production serves no such model")
        return state.package

    # --- production ---

    @property
    def _grpc(self) -> str:
        return f"{stack.HOST}:{self.running.grpc_port}"

    def _answers(self, case: Case, inputs: Arrays) -> Arrays:
        """Production's answers; samples one by one, since a model may take no batches."""
        name = serving_name(case.name)
        with TritonClient(self._grpc) as client:
            signature = client.signature(name)
            return infer_one_by_one(client, name, signature, for_inputs(inputs, signature), sequence=case.sequence)

    def _throughput(self, case: Case, inputs: Arrays, work: Path) -> float | None:
        """Answers per second with 16 clients; None for a model that takes sequences, or streams its answers."""
        name = serving_name(case.name)
        with TritonClient(self._grpc) as client:
            signature = client.signature(name)
        if case.sequence or signature.streamed:
            return None
        side = Side(
            name=name,
            port=self.running.http_port,
            process=self.running.processes["triton"],
            requests=requests(self.running.http_port, name, signature, for_inputs(inputs, signature)),
            check={},
            difference=0.0,
            settings={},
            model=name,
        )
        effort = Effort(rounds=1, window_s=2.0 if self.quick else 5.0)
        window = measure(side, [], CLIENTS, 0, effort, work)
        if window.errors:
            raise Failed(f"{window.errors} of {window.requests} requests failed under load: {window.first_error}")
        return round(window.throughput_per_s, 1)


def merged(spec: str, more: str) -> str:
    """A release spec with another's sections added to its own."""
    import yaml

    whole, added = yaml.safe_load(spec), yaml.safe_load(more) or {}
    return yaml.safe_dump(whole | {name: whole.get(name, {}) | fields for name, fields in added.items()})


def judged(case: Case, report: ReleaseReport) -> Result:
    """How a release ended, against what is right for the case."""
    promoted, reason = report.exit_code == 0, " ".join(report.reason.split())[:600]
    end = Result(
        name=case.name,
        flavor=case.flavor,
        outcome="failed",
        reason=reason,
        exit_code=report.exit_code,
        seconds=round(report.seconds, 1),
    )
    if case.right == "promoted":
        return end.model_copy(update={"outcome": "promoted", "reason": ""}) if promoted else end
    if promoted:
        return end.model_copy(update={"reason": f"promoted, though right is a refusal: {case.reason}"})
    return end.model_copy(update={"outcome": "refused"}) if case.reason in reason else end


# --- requests --------------------------------------------------------------------------------------------------------


def for_inputs(inputs: Arrays, signature: Signature) -> Arrays:
    """Arrays in the form Triton takes, by the names of a model's inputs; a single one fits a single input."""
    if len(inputs) == len(signature.inputs) == 1:
        inputs = {signature.inputs[0].name: next(iter(inputs.values()))}
    return {
        spec.name: as_tensor(spec.datatype, inputs[spec.name])
        for spec in signature.inputs
        if spec.name in inputs or not spec.optional
    }


def requests(port: int, name: str, signature: Signature, inputs: Arrays) -> tuple[bytes, ...]:
    """A KServe v2 request with binary tensors for each sample."""
    from tritonclient.http import InferenceServerClient, InferInput, InferRequestedOutput

    outputs = [InferRequestedOutput(spec.name, binary_data=True) for spec in signature.outputs]
    bodies = []
    for at in range(len(next(iter(inputs.values())))):
        tensors = []
        for spec in signature.inputs:
            sample = inputs[spec.name][at : at + 1]
            tensor = InferInput(spec.name, list(sample.shape), spec.datatype)
            tensor.set_data_from_numpy(sample, binary_data=True)
            tensors.append(tensor)
        body, head = InferenceServerClient.generate_request_body(tensors, outputs=outputs)
        lengths = {} if head is None else {"Inference-Header-Content-Length": str(head)}
        headers = {"Content-Type": "application/octet-stream", **lengths}
        bodies.append(request_bytes(port, f"/v2/models/{name}/infer", headers, body))
    return tuple(bodies)


# --- pyfunc ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Asked:
    """A model as `mlflow.pyfunc` loads it, its question, and its answer."""

    model: Any
    question: Any
    answer: Arrays

    def throughput(self, seconds: float) -> float | None:
        """Samples per second in a loop of single samples; None if pyfunc can't ask the model."""
        if self.model is None:
            return None
        samples = [row(self.question, at) for at in range(count(self.question))]
        self.model.predict(samples[0])
        done, started = 0, time.monotonic()
        while (elapsed := time.monotonic() - started) < seconds:
            self.model.predict(samples[done % len(samples)])
            done += 1
        return round(done / elapsed, 1)


def pyfunc(case: Case, version: int, logged: Logged) -> Asked:
    """Asks the registered model as `mlflow.pyfunc` does."""
    if logged.question is None:
        return Asked(model=None, question=None, answer={})
    import mlflow

    model = mlflow.pyfunc.load_model(f"models:/{case.name}/{version}")
    prediction = model.predict(logged.question)
    return Asked(model=model, question=logged.question, answer=(logged.answer or named)(prediction))


def count(question: Any) -> int:
    """How many samples a question has."""
    return len(next(iter(question.values()))) if isinstance(question, Mapping) else len(question)


def row(question: Any, at: int) -> Any:
    """One sample of a question, in the same form."""
    if isinstance(question, Mapping):
        return {name: np.asarray(value)[at : at + 1] for name, value in question.items()}
    return question.iloc[[at]] if hasattr(question, "iloc") else question[at : at + 1]
