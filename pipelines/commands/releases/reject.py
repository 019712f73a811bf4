"""`shiplift reject`."""

from shiplift.pipelines.commands import edge
from shiplift.pipelines.commands.options import Detach, Engine, Json, ModelVersion, Namespace, Reason, Watch


def reject(
    name: ModelVersion,
    reason: Reason = "",
    detach: Detach = False,
    watch: Watch = False,
    engine: Engine = None,
    namespace: Namespace = None,
    as_json: Json = False,
) -> None:
    """End the release of a version that waits for approval. Example: `shiplift reject digits/4 --reason "too slow"`"""
    from shiplift.pipelines.commands.releases.release_order import follow
    from shiplift.runtime.base.errors import Rejected

    chosen = edge.engine(engine, namespace)
    model, version = edge.version_of(name)
    accepted = chosen.decide(model, version, approve=False, reason=edge.reason(reason))
    follow(chosen, accepted, model=model, detach=detach, watch=watch, as_json=as_json, expected=Rejected.exit_code)
