"""Production that answers wrongly, on the real server: it is noticed, healed and told."""

import json
import os
import time
from pathlib import Path

import onnx

from shiplift.pipelines.engines.local import incidents, pulses
from shiplift.runtime.records.site import Machine
from shiplift.runtime.serving.machine.production import LocalProduction
from shiplift.runtime.serving.triton.client import TritonClient
from shiplift.runtime.serving.triton.repository_key import key_of
from tests.integration.conftest import Lab, Released, digits, until


def falsify(file: Path) -> None:
    """Changes every weight of a model, in place."""
    model = onnx.load(file)
    for node in model.graph.node:  # a classifier of scikit-learn has its weights in attributes
        for attribute in node.attribute:
            if attribute.floats:
                attribute.floats[:] = [1 - 3 * weight for weight in attribute.floats]
    onnx.save(model, file)
    later = time.time() + 5  # Triton loads it again only if it is newer
    os.utime(file, (later, later))


def test_a_model_that_answers_wrongly_is_loaded_again_from_the_artifact_store(lab: Lab, champion: Released) -> None:
    model, version, began = champion.model, champion.version, time.time()
    images, _ = digits()
    right = lab.ask(model, {"input": images[:8]})["outputs"]
    until(lambda: pulses.read(lab.home, model).verified_at)
    assert pulses.read(lab.home, model).finding == ""
    machine = lab.site.place
    assert isinstance(machine, Machine)
    repository = LocalProduction(lab.site, machine).repository
    (file,) = (repository / model).glob("*/model.onnx")
    falsify(file)
    with TritonClient(machine.grpc, repository_key=key_of(repository)) as client:
        client.load(model)
    assert lab.ask(model, {"input": images[:8]})["outputs"] != right
    until(lambda: lab.ask(model, {"input": images[:8]})["outputs"] == right, seconds=120)
    until(lambda: pulses.read(lab.home, model).finding == "")
    events = [entry.event for entry in incidents.recent(lab.home) if entry.model == model and entry.at > began]
    assert len(events) == 1, events
    assert "answers a golden request wrongly" in events[0]
    assert events[0].endswith("the model is loaded again")
    assert lab.ask(model, {"input": images[:1]})["version"] == version
    shown = json.loads(lab.engine.status(model).model_dump_json())
    assert shown["verified_at"] > began
