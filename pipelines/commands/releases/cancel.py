"""`shiplift cancel`."""

from shiplift.pipelines.commands import edge
from shiplift.pipelines.commands.options import Engine, ModelVersion, Namespace


def cancel(name: ModelVersion, engine: Engine = None, namespace: Namespace = None) -> None:
    """Stop a version's release under way; nothing half-deployed is left. Example: `shiplift cancel digits/4`"""
    stopped = edge.engine(engine, namespace).cancel(*edge.version_of(name))
    edge.say(f"cancelled {stopped}" if stopped else "no release of that version is running")
