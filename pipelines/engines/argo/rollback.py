"""Runs a rollback as a Workflow with one stage, and waits for it."""

import time

from shiplift.pipelines.engines.argo.following.events import ended, workflow
from shiplift.pipelines.engines.argo.releases import MANAGED
from shiplift.pipelines.engines.argo.workflows import nodes, outputs
from shiplift.pipelines.release import ROLLBACK
from shiplift.runtime.base.errors import Temporary
from shiplift.runtime.base.names import dns_name
from shiplift.runtime.records.failure import Failure
from shiplift.runtime.records.promotion import Promotion
from shiplift.runtime.serving.kubernetes.client import KubernetesClient
from shiplift.runtime.serving.kubernetes.connection import Object

_POLL_S = 0.5
_ROLLBACK_S = 600


def rollback(api: KubernetesClient, model: str) -> Promotion:
    """Makes the previous champion serve again.

    Raises:
        NothingToRollBack, CanaryFailed, ServerFailed, ...: as `steps.rollback.rollback` does.
        Temporary: the rollback took too long, or its pod was lost.
    """
    name = api.create(_body(model))["metadata"]["name"]
    deadline = time.monotonic() + _ROLLBACK_S
    while time.monotonic() < deadline:
        body = workflow(api, name)
        if ended(body):
            return _promotion(body)
        time.sleep(_POLL_S)
    raise Temporary(f"rollback {name} has not ended after {_ROLLBACK_S} s", do=f"Look at it with `argo get {name}`.")


def _body(model: str) -> Object:
    return {
        "apiVersion": "argoproj.io/v1alpha1",
        "kind": "Workflow",
        "metadata": {"generateName": f"rollback-{dns_name(model)}-", "labels": MANAGED},
        "spec": {
            "workflowTemplateRef": {"name": ROLLBACK.name},
            "arguments": {"parameters": [{"name": "model", "value": model}]},
        },
    }


def _promotion(body: Object) -> Promotion:
    for node in nodes(body["status"]):
        parameters = outputs(node)
        if text := parameters.get(Promotion.parameter()):
            return Promotion.model_validate_json(text)
        if text := parameters.get(Failure.parameter()):
            raise Failure.model_validate_json(text).error()
    reason = body["status"].get("message", "its pod gave no reason")
    raise Temporary(f"rollback {body['metadata']['name']} failed: {reason}", do="Look at it with `argo get`.")
