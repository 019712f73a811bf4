"""A graph that loops for ever, in C, on a size of batch that scoring asks and the proof does not: nobody waits."""

import os
import signal
import time
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from mlflow.models import infer_signature

from shiplift.runtime.base.names import release_name
from shiplift.runtime.host.processes import alive
from shiplift.runtime.records.verdict import Outcome
from shiplift.runtime.store.registry.terms import CHAMPION
from tests.integration.conftest import FAST, Lab, until
from tests.integration.test_bad_input import refused
from tests.unit.examples import endless


def log_endless(lab: Lab, name: str, folder: Path, spec: str) -> int:
    """Registers the model with validation data, which it answers as the proof asks them, and never as scoring does."""
    model = onnx.load(endless(folder / "model.onnx", stuck=[4]))
    rows = np.random.default_rng(0).normal(size=(200, 4)).astype(np.float32)
    example = {"input": rows[:3]}

    def log_model(**options: Any) -> Any:
        signature = infer_signature(example, {"output": rows[:3]})
        return lab.mlflow.onnx.log_model(model, signature=signature, input_example=example, **options)

    return lab.log(name, log_model, spec=spec, data={"input": rows, "label": np.zeros(200, np.int64)})


@pytest.mark.slow
def test_it_ends_within_its_limit_and_the_next_release_is_taken(lab: Lab, tmp_path: Path) -> None:
    version = log_endless(lab, "endless", tmp_path, FAST + "quantization: {timeout_s: 5}\n")
    after = lab.log_classifier("after-endless")
    report = refused(
        lab,
        "endless",
        version,
        32,
        "building and scoring the precisions took over 5 s",
        "Raise `quantization.timeout_s` in the spec",
    )
    assert (report.verdict, report.stages[-1].name, report.stages[-1].outcome) == (Outcome.FAIL, "quantize", "failed")
    messages = [event.message for event in lab.events("endless", version)]
    assert not any("trying again" in message for message in messages)
    assert lab.wait("after-endless", after).exit_code == 0
    assert lab.registry.alias("after-endless", CHAMPION) == after


def quantizing(lab: Lab, name: str, folder: Path) -> int:
    """Registers the model and waits until its sandbox works on it."""
    version = log_endless(lab, name, folder, FAST)
    building = "building and scoring the precisions in the sandbox"
    until(lambda: any(event.message == building for event in lab.events(name, version)), seconds=120)
    return version


@pytest.mark.slow
def test_a_cancel_ends_it_at_once(lab: Lab, tmp_path: Path) -> None:
    version = quantizing(lab, "endless-cancelled", tmp_path)
    before = time.monotonic()
    assert lab.engine.cancel("endless-cancelled", version)
    assert time.monotonic() - before < 10
    report = lab.wait("endless-cancelled", version)
    assert (report.exit_code, report.stages[-1].name, report.stages[-1].outcome) == (130, "quantize", "cancelled")
    assert not list(lab.home.glob("shiplift-*"))


@pytest.mark.slow
def test_a_process_that_does_not_listen_is_killed_and_its_release_concluded(lab: Lab, tmp_path: Path) -> None:
    """A stopped process handles no signal, like one that is stuck in C."""
    version = quantizing(lab, "deaf", tmp_path)
    worker = lab.releases.worker(release_name("deaf", version, ""))
    assert worker is not None
    os.kill(worker.pid, signal.SIGSTOP)
    assert lab.engine.cancel("deaf", version)
    report = lab.wait("deaf", version)
    assert (report.exit_code, report.reason) == (
        130,
        "the release was cancelled; its process did not stop by itself and was killed. `shiplift release` resumes it.",
    )
    assert [(run.name, run.outcome) for run in report.stages][-1] == ("quantize", "cancelled")
    assert not alive(worker)
    assert until(lambda: lab.registry.version("deaf", version).tags.get("shiplift.outcome")) == "cancelled"
