"""Real releases on a stack of their own: a model is logged, released, asked in production, and removed."""

import os
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.machine import until
from benchmarks.production import mlflow_client, remove_model
from benchmarks.proof.asking import Judged, compared, renamed, size, tensors, truth
from benchmarks.proof.case import Case, Form, Logged
from benchmarks.proof.logged_model import options_of
from benchmarks.proof.results import Result
from benchmarks.proof.running import SEED, ended, failed, told
from benchmarks.subjects import QUICK_SPEC, wait_for
from benchmarks.zoo.running import for_inputs, merged
from shiplift.pipelines.engines.local import stack
from shiplift.pipelines.engines.local.releases import Releases
from shiplift.pipelines.settings import Settings
from shiplift.runtime.base.errors import ExportFailed, Refused
from shiplift.runtime.base.names import serving_name
from shiplift.runtime.model.tensors import Arrays
from shiplift.runtime.proof.answers import Answers
from shiplift.runtime.proof.settings import alone, count_of, joined, rows_of
from shiplift.runtime.records.kinds.package import Package
from shiplift.runtime.records.release import ReleaseReport
from shiplift.runtime.serving.machine.served import served
from shiplift.runtime.serving.triton.client import TritonClient
from shiplift.runtime.store.registry.client import prepare_environment

CLIENTS = 16
_START_S = 60
_SPEC = "\n".join((QUICK_SPEC, "slo: {regression: {p99_percent: 1000, throughput_percent: 1000, score: 1}}"))
_REFUSALS = (ExportFailed.exit_code, Refused.exit_code)

Tell = Callable[[str], None]


def releases(cases: Sequence[Case], tell: Tell) -> Iterator[Result]:
    """Releases the cases one after the other on one stack, which ends with the iterator."""
    prepare_environment()
    with tempfile.TemporaryDirectory(prefix="shiplift-proof-") as name:
        home = Path(name) / "home"
        running = stack.up(Settings(home=home, free_ports=True), tell)
        os.environ["MLFLOW_TRACKING_URI"] = running.registry_uri
        try:
            for case in cases:
                with tempfile.TemporaryDirectory(prefix="proof-case-") as folder:
                    yield _Release(home=home, running=running, case=case, folder=Path(folder)).result()
        finally:
            stack.down(home)


@dataclass(frozen=True, kw_only=True)
class _Release:
    """One case on the stack of a home."""

    home: Path
    running: stack.Stack
    case: Case
    folder: Path

    def result(self) -> Result:
        """Releases the case; whatever goes wrong with it is in its result."""
        started = time.monotonic()
        try:
            result = self._result()
        except Exception as error:  # a case must not end the others
            result = failed(self.case, error)
        finally:
            remove_model(self.home, self.running, self.case.name)
        seconds = result.seconds or round(time.monotonic() - started, 1)
        return result.model_copy(update={"depth": "released", "seconds": seconds})

    def _result(self) -> Result:
        if self.case.before:
            (self.folder / "before").mkdir()
            self._released(self.case.before(self.folder / "before"))
            mlflow_client(self.running).delete_registered_model(self.case.name)
        logged = self.case.build(self.folder)
        version, report = self._released(logged)
        if report.exit_code:
            return self._unreleased(report)
        return self._asked(logged, version).model_copy(update=_seconds(report))

    def _released(self, logged: Logged) -> tuple[int, ReleaseReport]:
        """Logs a version and waits for the end of its release, which is none that the name and number had before."""
        known, name = Releases(self.home), self.case.name
        old = set(known.of(name, 1))
        version = self._log(logged)
        new = until(lambda: set(known.of(name, version)) - old, f"the release of {name}", seconds=_START_S)
        return version, wait_for(known, new.pop())

    def _log(self, logged: Logged) -> int:
        import mlflow

        mlflow.set_tracking_uri(self.running.registry_uri)
        mlflow.set_registry_uri(self.running.registry_uri)
        model, options = options_of(self.case, logged)
        with warnings.catch_warnings(), mlflow.start_run():
            warnings.simplefilter("ignore")
            if logged.validation:
                np.savez(self.folder / "validation.npz", **logged.validation)  # type: ignore[arg-type]
                mlflow.log_artifact(str(self.folder / "validation.npz"), "shiplift")
            mlflow.log_text(merged(_SPEC, self.case.spec), "shiplift/shiplift.yaml")
            log = getattr(mlflow, self.case.flavor).log_model
            info = log(*model, name="model", registered_model_name=self.case.name, **options)
        return int(info.registered_model_version)

    def _unreleased(self, report: ReleaseReport) -> Result:
        refused = report.exit_code in _REFUSALS
        reason = " ".join(f"exit code {report.exit_code}: {report.reason}".split())[:600]
        ending = ended(self.case, "refused" if refused else "failed", reason=reason)
        return ending.model_copy(update=_seconds(report))

    def _asked(self, logged: Logged, version: int) -> Result:
        """Asks production all fresh rows, one by one and by 16 clients."""
        import mlflow

        question = logged.rows(self.case.fresh, SEED)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            model = None if logged.original else mlflow.pyfunc.load_model(f"models:/{self.case.name}/{version}")
            right = truth(self.case, logged, model, question)
        state = served(self.home, serving_name(self.case.name))
        if state is None:
            raise LookupError("the release says promoted, but production serves no such model")
        seen = self._production(right, tensors(question))
        return told(
            self.case,
            [seen],
            (_form_of(state.package),),
            batches=state.package.signature.batch != 1,
            reason=f"{state.package.engine} {state.package.precision}",
            rows=size(question),
        )

    def _production(self, right: Answers, inputs: Arrays) -> Judged:
        name, address = serving_name(self.case.name), f"{stack.HOST}:{self.running.grpc_port}"
        with TritonClient(address) as client:
            signature = client.signature(name)
        asked = for_inputs(inputs, signature)

        def some(rows: Sequence[int]) -> Answers:
            with TritonClient(address) as client:
                return alone(lambda one: client.infer(name, signature, one), rows_of(asked, rows))

        count = count_of(asked)
        order = np.random.default_rng(SEED).permutation(count)
        with ThreadPoolExecutor(CLIENTS) as pool:
            parts = list(pool.map(some, [share.tolist() for share in np.array_split(order, CLIENTS)]))
        together = joined(parts).take(np.argsort(order))
        return compared(
            renamed(right, signature.outputs[0].name),
            [("alone", some(range(count))), (f"among {CLIENTS} clients", together)],
        )


def _seconds(report: ReleaseReport) -> dict[str, float]:
    return {"seconds": round(report.seconds, 1), "proof_seconds": round(report.proof_seconds, 2)}


def _form_of(package: Package) -> Form:
    forms: dict[Any, Form] = {"trees": "trees", "python": "python"}
    return forms.get(package.engine, "graph")
