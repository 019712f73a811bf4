"""Scores a dataset on a cluster: a Workflow with a pod that plans, pods that score shares, and one that finishes."""

from collections.abc import Iterator

from shiplift.pipelines.engines.argo.following import events
from shiplift.pipelines.engines.argo.layout import DATA
from shiplift.pipelines.engines.argo.single import body_of, record
from shiplift.pipelines.engines.argo.workflows import as_parameter
from shiplift.pipelines.offline import PREDICT
from shiplift.runtime.base.errors import UsageError
from shiplift.runtime.records.offline import OfflineOrder, OfflineResult
from shiplift.runtime.records.release import Event
from shiplift.runtime.serving.kubernetes.client import KubernetesClient


def score(api: KubernetesClient, order: OfflineOrder) -> Iterator[Event | OfflineResult | None]:
    """Yields what happens in the Workflow of an order, then the result.

    Raises:
        UsageError: a place is on this machine, which no pod reaches.
        ShipliftError: what a step raised.
    """
    for name, place in {"--input": order.input, "--output": order.output}.items():
        if "://" not in place and not place.startswith(f"{DATA}/"):
            raise UsageError(
                f"{name} {place} is on this machine, which the cluster's pods can't reach",
                do=f"Name a URI such as s3://BUCKET/FOLDER, or {DATA}/FOLDER of the claim in the values' `data_claim`.",
            )
    values = {OfflineOrder.parameter(): as_parameter(order), "output": order.output}
    name = api.create(body_of(PREDICT.name, order.model, values))["metadata"]["name"]
    yield Event(stage=PREDICT.name, kind="progress", message=f"Workflow {name}")
    yield from events.of(api, name, PREDICT)
    yield record(events.workflow(api, name), OfflineResult)
