"""`shiplift cancel`."""

from shiplift.pipelines.commands import edge
from shiplift.pipelines.commands.options import Engine, ModelVersion, Namespace


def cancel(name: ModelVersion, engine: Engine = None, namespace: Namespace = None) -> None:
    """Cancel a version's release; nothing half-deployed is left behind. Example: `shiplift cancel digits/4`"""
    stopped = edge.engine(engine, namespace).cancel(*edge.version_of(name))
    edge.say(f"cancelled {stopped}" if stopped else "no release of that version is running")
