"""How far a cluster's targets of events are, in a ConfigMap: what the reconciler's pod keeps on disk goes with it.

Only the reconciler writes it. `shiplift events` reads it.
"""

from collections.abc import Mapping

from pydantic import ValidationError

from shiplift.pipelines.engines.argo.layout import EVENTS
from shiplift.pipelines.engines.argo.record_map import write_records
from shiplift.runtime.events.outbox import Place
from shiplift.runtime.serving.kubernetes.client import KubernetesClient
from shiplift.runtime.serving.kubernetes.kinds import CONFIG_MAP


class TargetPosition(Place):
    """How far a target is; `seq` means nothing here.

    `until` is when the newest event happened that it has got, or lost, in seconds since the epoch. `recent` are the ids
    of those that happened shortly before.
    """

    until: float
    recent: tuple[str, ...] = ()


class ToldTargets:
    """The entries of a namespace, by the target's name."""

    def __init__(self, api: KubernetesClient) -> None:
        self._api = api

    def read(self) -> dict[str, TargetPosition]:
        """Every target's entry, without those that can't be read; empty if the cluster tells nobody of events."""
        body = self._api.get(CONFIG_MAP, EVENTS)
        entries = ((name, _parsed(text)) for name, text in ((body or {}).get("data") or {}).items())
        return {name: entry for name, entry in entries if entry}

    def write(self, entries: Mapping[str, TargetPosition | None]) -> None:
        """Records how far targets are; None removes an entry.

        Raises:
            NotFound: the ConfigMap does not exist.
        """
        write_records(self._api, EVENTS, entries)


def _parsed(text: str) -> TargetPosition | None:
    try:
        return TargetPosition.model_validate_json(text)
    except ValidationError:
        return None
