"""What a machine's calibration lets a search expect: where each package begins, and which can't win at all.

A generated graph is not the model, so it only says where to look first. A package is left out only if the machine
computes its precision much more slowly than another on the same engine, in every case that was calibrated.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from shiplift.runtime.records.calibration import Calibration, GraphKind
from shiplift.runtime.records.kinds.package import Package
from shiplift.runtime.records.serving import ServingConfig

_HOPELESS = 1.5  # times as slow as another precision, in each case
_SMALL_BYTES = 1 << 20
_COMPARED: tuple[GraphKind, ...] = ("dense", "small")
_Case = tuple[int, int, int]  # instances, threads, batch


@dataclass(frozen=True, kw_only=True)
class Expectations:
    """The rates of a calibration, by graph, form and case."""

    rates: Mapping[GraphKind, Mapping[str, Mapping[_Case, float]]]
    disturbed: bool = False

    def rows_per_s(self, package: Package, config: ServingConfig, among: Sequence[Package]) -> float | None:
        """The rows per second of a generated graph in a package's form and configuration; None if none was measured.

        `among` are all packages of the model, which say what kind of graph is most like it. Between batches it is
        interpolated; of placements, the most similar one counts.
        """
        cases = self.rates.get(graph_like(among), {}).get(package.variant, {})
        if not cases or not _computes_a_graph(package):
            return None

        def unlike(placement: tuple[int, int]) -> float:
            return abs(math.log2(placement[0] / config.instances)) + abs(math.log2(placement[1] / config.threads))

        placement = min({case[:2] for case in cases}, key=lambda each: (unlike(each), each))
        by_batch = {case[2]: math.log(rate) for case, rate in cases.items() if case[:2] == placement}
        return math.exp(_between(by_batch, config.max_batch))

    def hopeless(self, packages: Sequence[Package]) -> dict[str, str]:
        """The variants that can't be the fastest of these packages on their engine, each with the reason.

        Engines are not compared: which is faster depends on a model's operators, but which precision is faster on one
        depends on the processor. Never all of them, and none if other processes disturbed the calibration.
        """
        if self.disturbed or graph_like(packages) == "trees" or not all(map(_computes_a_graph, packages)):
            return {}
        found = {}
        for package in packages:
            share = self._best_share(package.variant, [each for each in packages if each.engine == package.engine])
            if share is not None and share * _HOPELESS < 1:
                found[package.variant] = (
                    f"{package.described} was not tried: in every case of this machine's calibration another precision "
                    f"is computed at least {1 / share:.2g} times as fast"
                )
        return found

    def _best_share(self, variant: str, packages: Iterable[Package]) -> float | None:
        """A variant's rate as a share of the fastest's, in the case in which that is most; None if none can tell."""
        shares = []
        for graph in _COMPARED:
            measured = self.rates.get(graph, {})
            if variant not in measured:
                return None
            others = [measured[package.variant] for package in packages if package.variant in measured]
            for case, rate in measured[variant].items():
                shares.append(rate / max(other.get(case, 0.0) for other in others))
        return max(shares)


def expectations_of(calibration: Calibration | None) -> Expectations | None:
    """What a calibration lets expect; None without one."""
    if calibration is None:
        return None
    rates: dict[GraphKind, dict[str, dict[_Case, float]]] = {}
    for rate in calibration.rates:
        if rate.rows_per_s > 0:
            case = (rate.instances, rate.threads, rate.batch)
            rates.setdefault(rate.graph, {}).setdefault(rate.variant, {})[case] = rate.rows_per_s
    return Expectations(rates=rates, disturbed=calibration.disturbed_cores > 0)


def graph_like(packages: Sequence[Package]) -> GraphKind:
    """The generated graph that is most like a model: by its engines, and by the size of its largest package."""
    if any(package.engine == "trees" for package in packages):
        return "trees"
    return "small" if max(package.repository.size_bytes for package in packages) < _SMALL_BYTES else "dense"


def _computes_a_graph(package: Package) -> bool:
    """Whether an engine of graphs answers one request after another with it."""
    return package.engine in ("onnxruntime", "openvino", "trees") and not package.signature.streamed


def _between(values: Mapping[int, float], at: int) -> float:
    """The value at a batch, between the measured ones around it on a logarithmic axis; the nearest beyond them."""
    below, above = (max((b for b in values if b <= at), default=0), min((b for b in values if b >= at), default=0))
    if not below or not above or below == above:
        return values[below or above]
    share = math.log2(at / below) / math.log2(above / below)
    return values[below] * (1 - share) + values[above] * share
