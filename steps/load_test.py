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
from runtime.progress import progress
from runtime.records import Champion, Comparison, Deployment, LoadPoint, LoadReport, Package, Site, Staged
from runtime.samples import random_like
from runtime.serving import staging
from runtime.spec import Load
from runtime.tensors import load_npz
from runtime.triton.client import TritonClient
from runtime.triton.environment import ServerEnvironment
from runtime.triton.repository import GOLDEN

_REQUESTS = 32
_EXTENSION = 3  # a noisy comparison goes on for this many times its rounds
_NOISE_PERCENT = 20


@dataclass(frozen=True, kw_only=True)
class _Side:
    """A staged model and the file with its requests."""

    staged: Staged
    requests: Path


@dataclass(frozen=True, kw_only=True)
class _Generator:
    """perf_analyzer, as the spec asks for it."""

    environment: ServerEnvironment
    load: Load
    work: Path

    def measure(self, side: _Side, concurrency: int, *, attempts: int) -> LoadPoint:
        """One model at one concurrency."""
        staged = side.staged
        http = staged.endpoint.http.removeprefix("http://").split("/", 1)[0]
        address = staged.endpoint.grpc if self.load.protocol == "grpc" else http
        window = perf.Window(
            window_ms=self.load.window_ms,
            stability_percent=self.load.stability_percent,
            attempts=attempts,
            protocol=self.load.protocol,
        )
        target = perf.Target(model=staged.model, address=address, requests=side.requests)
        return perf.measure(self.environment, target, concurrency, window, self.work)


def load_test(site: Site, deployment: Deployment, champion: Champion, load: Load) -> LoadReport:
    """Sweeps the challenger, then compares it with the champion where its throughput is highest.

    Raises:
        MissingTool: perf_analyzer is not there.
        MeasurementFailed: it died, or a request failed.
    """
    store = ArtifactStore(site.artifacts_uri)
    package = deployment.package
    place = staging(site, package.model, package.version)
    environment = ServerEnvironment(Path(site.server_environment))
    with TemporaryDirectory(prefix="shiplift-load-", dir=site.home) as folder:
        generator = _Generator(environment=environment, load=load, work=Path(folder))
        staged = Staged(model=serving_name(package.model), endpoint=deployment.endpoint)
        challenger = _Side(staged=staged, requests=_requests(store, package, load, generator.work / "challenger"))
        points = _sweep(generator, challenger)
        with TritonClient(deployment.endpoint.grpc) as client:
            failures = client.failures(staged.model)
        memory = place.memory_mb(deployment)
        report = LoadReport(points=points, failures=failures, memory_mb=memory, protocol=load.protocol)
        comparison: Comparison | None = None
        notes: tuple[str, ...] = (_incomparable(champion),)
        if champion.package is not None:
            try:
                other = _requests(store, champion.package, load, generator.work / "champion")
                rival = _Side(staged=place.beside(deployment, champion.package), requests=other)
                comparison, notes = _compare(generator, rival, challenger, champion, report), ()
            except (ArtifactCorrupt, ServerFailed) as error:
                notes = (f"champion {champion.version} can't be measured beside the challenger: {error.what}",)
    return report.model_copy(update={"comparison": comparison, "notes": notes})


def _sweep(generator: _Generator, side: _Side) -> tuple[LoadPoint, ...]:
    points = []
    levels = sorted(set(generator.load.concurrency))
    for at, concurrency in enumerate(levels):
        progress(f"measuring at concurrency {concurrency}", at / len(levels))
        points.append(generator.measure(side, concurrency, attempts=generator.load.attempts))
    return tuple(points)


def _incomparable(champion: Champion) -> str:
    if not champion.version:
        return "there is no champion to compare with"
    return f"version {champion.version} was not promoted by Shiplift: there is nothing to compare with"


def _compare(
    generator: _Generator, rival: _Side, challenger: _Side, champion: Champion, report: LoadReport
) -> Comparison:
    concurrency = max(report.points, key=lambda point: point.throughput_per_s).concurrency
    rounds: list[tuple[LoadPoint, LoadPoint]] = []
    least = generator.load.comparison_rounds
    while len(rounds) < least or (len(rounds) < _EXTENSION * least and _noisy(champion, concurrency, rounds)):
        progress(f"comparing with champion {champion.version}, round {len(rounds) + 1}")
        order = (rival, challenger) if len(rounds) % 2 == 0 else (challenger, rival)
        found = {side: generator.measure(side, concurrency, attempts=1) for side in order}
        rounds.append((found[rival], found[challenger]))
    return _ratios(champion.version, concurrency, rounds)


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
