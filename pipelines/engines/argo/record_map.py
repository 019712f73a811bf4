"""Records in a ConfigMap of the installation, each as JSON under a name: what a process must know after a restart."""

from collections.abc import Mapping

from shiplift.runtime.base.errors import NotFound
from shiplift.runtime.records.base import Record
from shiplift.runtime.serving.kubernetes.client import KubernetesClient
from shiplift.runtime.serving.kubernetes.kinds import CONFIG_MAP


def write_records(api: KubernetesClient, config_map: str, records: Mapping[str, Record | None]) -> None:
    """Writes these records and leaves others as they are; None removes one.

    Raises:
        NotFound: the ConfigMap does not exist.
    """
    data = {name: record.model_dump_json() if record else None for name, record in records.items()}
    if api.merge(CONFIG_MAP, config_map, {"data": data}) is None:
        raise missing(config_map)


def missing(config_map: str) -> NotFound:
    """The error that a ConfigMap does not exist."""
    return NotFound(f"the ConfigMap {config_map!r} does not exist", do="Run `shiplift install`.")
