"""The load test: perf_analyzer against staging, with requests made from the model's own metadata and input example.

A sweep over concurrencies finds how the challenger behaves; then champion and challenger are measured in turn on the
same server (A B, B A, ...), so that what the machine does to one it does to the other.
"""

from dataclasses import dataclass
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

from runtime import perf, policy
from runtime.artifacts import ArtifactStore
from runtime.errors import ArtifactCorrupt, ServerFailed
from runtime.names import serving_name
from runtime.processes import memory_mb
from runtime.progress import progress
from runtime.records import Champion, Comparison, Deployment, LoadPoint, LoadReport, Package, Site
from runtime.samples import random_like
from runtime.spec import Load
from runtime.tensors import load_npz
from runtime.triton.client import TritonClient
from runtime.triton.environment import ServerEnvironment
from runtime.triton.repository import GOLDEN, install

_REQUESTS = 32
_CHAMPION = "--champion"
_EXTENSION = 3  # a noisy comparison goes on for this many times its rounds
_NOISE_PERCENT = 20


@dataclass(frozen=True, kw_only=True)
class _Stage:
    """The staging server as a target of load."""

    environment: ServerEnvironment
    client: TritonClient
    deployment: Deployment
    load: Load
    work: Path

    def measure(self, model: str, requests: Path, concurrency: int, *, attempts: int) -> LoadPoint:
        """One model at one concurrency."""
        http = self.deployment.endpoint.http.removeprefix("http://").split("/", 1)[0]
        address = self.deployment.endpoint.grpc if self.load.protocol == "grpc" else http
        window = perf.Window(
            window_ms=self.load.window_ms,
            stability_percent=self.load.stability_percent,
            attempts=attempts,
            protocol=self.load.protocol,
        )
        target = perf.Target(model=model, address=address, requests=requests)
        return perf.measure(self.environment, target, concurrency, window, self.work)


def load_test(site: Site, deployment: Deployment, champion: Champion, load: Load) -> LoadReport:
    """Sweeps the challenger, then compares it with the champion where its throughput is highest.

    Raises:
        MissingTool: perf_analyzer is not there.
        MeasurementFailed: it died, or a request failed.
    """
    store = ArtifactStore(site.artifacts_uri)
    package = deployment.package
    name = serving_name(package.model)
    environment = ServerEnvironment(Path(site.server_environment))
    with TemporaryDirectory(prefix="shiplift-load-", dir=site.home) as folder:
        work = Path(folder)
        with TritonClient(deployment.endpoint.grpc) as client:
            stage = _Stage(environment=environment, client=client, deployment=deployment, load=load, work=work)
            requests = _requests(store, package, load, work / "challenger")
            points = _sweep(stage, name, requests)
            memory = memory_mb(deployment.process.pid)
            report = LoadReport(points=points, failures=client.failures(name), memory_mb=memory, protocol=load.protocol)
            comparison, notes = _compare(stage, store, champion, requests, report)
    return report.model_copy(update={"comparison": comparison, "notes": notes})


def _sweep(stage: _Stage, name: str, requests: Path) -> tuple[LoadPoint, ...]:
    points = []
    levels = sorted(set(stage.load.concurrency))
    for at, concurrency in enumerate(levels):
        progress(f"measuring at concurrency {concurrency}", at / len(levels))
        points.append(stage.measure(name, requests, concurrency, attempts=stage.load.attempts))
    return tuple(points)


def _compare(
    stage: _Stage, store: ArtifactStore, champion: Champion, requests: Path, report: LoadReport
) -> tuple[Comparison | None, tuple[str, ...]]:
    package = champion.package
    if package is None:
        return None, ("there is no champion to compare with",) if not champion.version else (
            f"version {champion.version} was not promoted by Shiplift: there is nothing to compare with",
        )  # fmt: skip
    mine, theirs = serving_name(package.model), serving_name(package.model) + _CHAMPION
    try:
        other = _requests(store, package, stage.load, stage.work / "champion")
        install(stage.work / "champion", Path(stage.deployment.repository), source=mine, name=theirs)
        stage.client.load(theirs)
    except (ArtifactCorrupt, ServerFailed) as error:
        return None, (f"champion {champion.version} can't be measured beside the challenger: {error.what}",)
    concurrency = max(report.points, key=lambda point: point.throughput_per_s).concurrency
    rounds: list[tuple[LoadPoint, LoadPoint]] = []
    least = stage.load.comparison_rounds
    sides = [(theirs, other), (mine, requests)]
    while len(rounds) < least or (len(rounds) < _EXTENSION * least and _noisy(champion, concurrency, rounds)):
        progress(f"comparing with champion {champion.version}, round {len(rounds) + 1}")
        order = sides if len(rounds) % 2 == 0 else sides[::-1]
        found = {model: stage.measure(model, file, concurrency, attempts=1) for model, file in order}
        rounds.append((found[theirs], found[mine]))
    return _ratios(champion.version, concurrency, rounds), ()


def _noisy(champion: Champion, concurrency: int, rounds: list[tuple[LoadPoint, LoadPoint]]) -> bool:
    """Whether the ratios are still too uncertain for a gate: then more rounds are worth their time."""
    so_far = _ratios(champion.version, concurrency, rounds)
    return max(so_far.throughput_noise, so_far.p99_noise) > _NOISE_PERCENT


def _ratios(version: int, concurrency: int, rounds: list[tuple[LoadPoint, LoadPoint]]) -> Comparison:
    """Challenger over champion; noise is half the width of a 95 % interval of the ratio, in percent."""
    throughput = [mine.throughput_per_s / theirs.throughput_per_s for theirs, mine in rounds]
    p99 = [mine.p99_ms / theirs.p99_ms for theirs, mine in rounds]
    return Comparison(
        version=version,
        concurrency=concurrency,
        rounds=len(rounds),
        throughput_ratio=median(throughput),
        p99_ratio=median(p99),
        throughput_noise=policy.confidence_half_width(throughput) * 100,
        p99_noise=policy.confidence_half_width(p99) * 100,
    )


def _requests(store: ArtifactStore, package: Package, load: Load, to: Path) -> Path:
    """The package, fetched into `to`, and requests shaped like its golden ones."""
    tree = store.fetch(package.repository, to)
    golden = load_npz(tree / GOLDEN)
    example = {spec.name: golden[f"input/{spec.name}"] for spec in package.signature.inputs}
    samples = random_like(example, package.signature.inputs, _REQUESTS, seed=load.seed)
    return perf.write_requests(to.with_suffix(".json"), package.signature, samples)
