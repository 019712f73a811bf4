"""Who gets copies of requests: only while the shadow's process shows that it lives, whatever the clocks say."""

from typing import Any, cast
from unittest import mock

from shiplift.runtime.records.shadowing import Mirror
from shiplift.runtime.serving.kubernetes.client import KubernetesClient
from shiplift.runtime.serving.operator.cluster import observing
from shiplift.runtime.serving.operator.cluster.observing import Observer, Snapshot
from shiplift.runtime.serving.operator.evidence import Evidence
from shiplift.runtime.serving.operator.resources import SHADOW, ServiceSpec, service_object
from tests.unit.runtime.serving.operator.world import cluster

MIRROR = Mirror(revision="digits-2-b", share=0.2)


def service(note: str) -> dict[str, Any]:
    body = service_object("digits", "models", ServiceSpec(model="digits", revision="digits-1-a"))
    body["metadata"] |= {"uid": "u", "generation": 1, "annotations": {SHADOW: note}}
    return body


def test_copying_ends_when_nothing_is_counted_up_any_more() -> None:
    observer = Observer(cast("KubernetesClient", None), cluster())

    def seen(note: str, at: float) -> Mirror | None:
        snapshot = Snapshot(taken_at=0, services={"digits": service(note)})
        with mock.patch(f"{observing.__name__}.time.monotonic", return_value=at):
            observed = observer.observed(snapshot, "digits", Evidence())
        assert observed is not None
        return observed.mirror

    beats = [MIRROR.model_copy(update={"beat": beat}) for beat in range(3)]
    notes = [each.model_dump_json() for each in beats]
    assert seen(notes[0], 100) == beats[0]
    assert seen(notes[0], 119) == beats[0]
    assert seen(notes[1], 121) == beats[1]
    assert seen(notes[1], 140) == beats[1]
    assert seen(notes[1], 142) is None  # its process has gone
    assert seen(notes[2], 143) == beats[2]  # and another one has begun again
    assert seen("nonsense", 144) is None
