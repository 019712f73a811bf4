"""Deployment to staging: the tuned package on a server of its own, warmed, answering its golden requests right."""

from runtime.artifacts import ArtifactStore
from runtime.names import serving_name
from runtime.progress import progress
from runtime.records import Deployment, Endpoint, Site, Tuned
from runtime.registry import CHALLENGER, Registry
from runtime.spec import Serving
from runtime.tensors import load_npz
from runtime.triton.client import TritonClient, check_golden
from runtime.triton.production import TOLERANCE
from runtime.triton.repository import GOLDEN, install
from runtime.triton.server import Features
from runtime.triton.staging import Staging


def deploy(site: Site, tuned: tuple[Tuned, ...], serving: Serving) -> Deployment:
    """Loads the first target's package and names the version `challenger`; the server ends with the release.

    Raises:
        ServerFailed: Triton can't start or load it.
        GoldenMismatch: it answers a known request wrongly.
    """
    package = tuned[0].package
    staging, name = Staging(site, package.model, package.version), serving_name(package.model)
    progress("starting the staging server")
    server = staging.start(Features(rate_limiter=serving.rate_limiter is not None))
    try:
        tree = ArtifactStore(site.artifacts_uri).fetch(package.repository, staging.folder / "package")
        install(tree, server.repository, source=name, name=name)
        with TritonClient(server.grpc) as client:
            progress("loading and warming the model")
            seconds = client.load(name)
            golden = load_npz(tree / GOLDEN)
            check_golden(client, name, package.signature, golden, tolerance=TOLERANCE[package.precision])
        Registry(site.registry_uri).move_alias(package.model, CHALLENGER, package.version)
    except BaseException:
        staging.end()
        raise
    return Deployment(
        package=package,
        endpoint=Endpoint(http=f"http://{server.http}/v2/models/{name}", grpc=server.grpc),
        metrics=server.metrics,
        repository=str(server.repository),
        process=server.process,
        load_seconds=seconds,
    )
