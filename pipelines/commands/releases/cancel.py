"""`shiplift cancel`."""

from shiplift.pipelines.commands import edge
from shiplift.pipelines.commands.options import Engine, ModelVersion, Namespace


def cancel(name: ModelVersion, engine: Engine = None, namespace: Namespace = None) -> None:
    """Cancel a version's release; nothing half-deployed is left behind. Example: `shiplift cancel digits/4`"""
    from shiplift.pipelines.commands.releases.release_order import tell_if_promoted

    chosen = edge.engine(engine, namespace)
    stopped = chosen.cancel(*edge.version_of(name))
    if stopped:
        tell_if_promoted(chosen, stopped)
    edge.say(f"cancelled {stopped}" if stopped else "no release of that version is running")
