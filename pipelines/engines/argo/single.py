"""Runs a stage as a Workflow of its own, and waits for its record."""

import time
from collections.abc import Mapping
from typing import TypeVar

from shiplift.pipelines.engines.argo.following.events import ended, workflow
from shiplift.pipelines.engines.argo.releases import MANAGED
from shiplift.pipelines.engines.argo.workflows import nodes, outputs
from shiplift.pipelines.graph import Stage
from shiplift.runtime.base.errors import Temporary
from shiplift.runtime.base.names import dns_name
from shiplift.runtime.records.base import Record
from shiplift.runtime.records.failure import Failure
from shiplift.runtime.serving.kubernetes.client import KubernetesClient
from shiplift.runtime.serving.kubernetes.connection import Object

R = TypeVar("R", bound=Record)
_POLL_S = 0.5
_RUN_S = 600


def run(api: KubernetesClient, stage: Stage, gives: type[R], model: str, parameters: Mapping[str, str]) -> R:
    """The record that a stage gives for a model.

    Raises:
        ShipliftError: what the stage raised.
        Temporary: it took too long, or its pod was lost.
    """
    name = api.create(body_of(stage.name, model, {"model": model, **parameters}))["metadata"]["name"]
    deadline = time.monotonic() + _RUN_S
    while time.monotonic() < deadline:
        body = workflow(api, name)
        if ended(body):
            return record(body, gives)
        time.sleep(_POLL_S)
    raise Temporary(f"Workflow {name} has not ended after {_RUN_S} s", do=f"Look at it with `argo get {name}`.")


def body_of(template: str, model: str, values: Mapping[str, str]) -> Object:
    """The Workflow of a WorkflowTemplate with these parameters, named after the template and a model."""
    return {
        "apiVersion": "argoproj.io/v1alpha1",
        "kind": "Workflow",
        "metadata": {"generateName": f"{template}-{dns_name(model)}-", "labels": MANAGED},
        "spec": {
            "workflowTemplateRef": {"name": template},
            "arguments": {"parameters": [{"name": key, "value": value} for key, value in values.items()]},
        },
    }


def record(body: Object, gives: type[R]) -> R:
    """The record that an ended Workflow gave.

    Raises:
        ShipliftError: what a stage raised.
        Temporary: a pod was lost.
    """
    for node in nodes(body["status"]):
        parameters = outputs(node)
        if text := parameters.get(gives.parameter()):
            return gives.model_validate_json(text)
        if text := parameters.get(Failure.parameter()):
            raise Failure.model_validate_json(text).error()
    reason = body["status"].get("message", "its pod gave no reason")
    raise Temporary(f"Workflow {body['metadata']['name']} failed: {reason}", do="Look at it with `argo get`.")
