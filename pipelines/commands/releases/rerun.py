"""`shiplift rerun`."""

from shiplift.pipelines.commands import edge
from shiplift.pipelines.commands.options import AllowOlder, Detach, Engine, Json, ModelVersion, Namespace, Spec, Watch


def rerun(
    name: ModelVersion,
    spec: Spec = None,
    detach: Detach = False,
    allow_older: AllowOlder = False,
    engine: Engine = None,
    namespace: Namespace = None,
    watch: Watch = False,
    as_json: Json = False,
) -> None:
    """Run a release again. Stages with unchanged inputs come from the cache. Example: `shiplift rerun digits/3`"""
    from shiplift.pipelines.commands.releases.release_order import ReleaseOrder, place

    edge.version_of(name)
    order = ReleaseOrder(name=name, spec=edge.read(spec) if spec else "", again=True, allow_older=allow_older)
    place(edge.engine(engine, namespace), order, detach=detach, watch=watch, as_json=as_json)
