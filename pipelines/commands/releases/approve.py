"""`shiplift approve`."""

from shiplift.pipelines.commands import edge
from shiplift.pipelines.commands.options import Detach, Engine, Json, ModelVersion, Namespace, Reason, Watch


def approve(
    name: ModelVersion,
    reason: Reason = "",
    detach: Detach = False,
    watch: Watch = False,
    engine: Engine = None,
    namespace: Namespace = None,
    as_json: Json = False,
) -> None:
    """Promote a version that waits for approval. Example: `shiplift approve digits/4 --reason "labels checked"`"""
    from shiplift.pipelines.commands.releases.release_order import follow

    chosen = edge.engine(engine, namespace)
    model, version = edge.version_of(name)
    accepted = chosen.decide(model, version, approve=True, reason=edge.reason(reason))
    follow(chosen, accepted, model=model, detach=detach, watch=watch, as_json=as_json)
