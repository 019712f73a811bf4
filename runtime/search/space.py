"""The points of a search: every precision on every engine, with every configuration that makes sense on the cores.

Instances and threads form one axis, because their product has a limit: beyond two threads per core they only wait for
each other.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product

from shiplift.runtime.base.errors import SpecInvalid
from shiplift.runtime.model.lengths import Buckets
from shiplift.runtime.records.kinds.package import Package
from shiplift.runtime.records.precision import Engine
from shiplift.runtime.records.serving import ServerKind, ServingConfig
from shiplift.runtime.records.tensor import Signature
from shiplift.runtime.search.buckets import padded_with, sets_of
from shiplift.runtime.serving.triton.config import least_instances
from shiplift.runtime.spec.measurement import SearchSpace
from shiplift.runtime.spec.serving_settings import Serving

_INSTANCES = 8  # each is a copy of the model in memory; on more cores, each gets more threads


@dataclass(frozen=True)
class Point:
    """A candidate to measure: a package with a configuration."""

    package: Package
    config: ServingConfig

    @property
    def key(self) -> tuple[str, ServingConfig]:
        """Identifies the point."""
        return self.package.variant, self.config


@dataclass(frozen=True, kw_only=True)
class Space:
    """All points, as the product of axes."""

    packages: tuple[Package, ...]
    max_batch: tuple[int, ...]
    queue_delay_us: tuple[int, ...]
    placements: tuple[tuple[int, int], ...]  # instances, threads
    buckets: tuple[Buckets, ...] = ((),)  # a package that is not proven with a set gets none
    cores: int
    steady: int = 0  # how many of the cores compute at full speed all the time; 0: all do

    def point(self, package: int, max_batch: int, queue_delay_us: int, placement: int, buckets: int = 0) -> Point:
        """The point at these indices."""
        instances, threads = self.placements[placement]
        config = ServingConfig(
            max_batch=self.max_batch[max_batch],
            queue_delay_us=self.queue_delay_us[queue_delay_us],
            instances=instances,
            threads=threads,
            buckets=padded_with(self.packages[package], self.buckets[buckets]),
        )
        return Point(self.packages[package], config)

    @property
    def filling(self) -> tuple[int, ...]:
        """The placements that keep all cores busy, or else most of them; those with the most instances first."""
        return self._filling(self.cores)

    @property
    def steadily_filling(self) -> tuple[int, ...]:
        """The same for the cores that compute at full speed all the time: no thread waits for a slower one."""
        return self._filling(self.steady or self.cores)

    def _filling(self, wanted: int) -> tuple[int, ...]:
        used = [instances * threads for instances, threads in self.placements]
        full = min((cores for cores in used if cores >= wanted), default=max(used))
        return tuple(sorted((at for at, cores in enumerate(used) if cores == full), reverse=True))

    @property
    def axes(self) -> dict[str, range]:
        """The indices that `point` takes, by name."""
        return {
            "package": range(len(self.packages)),
            "max_batch": range(len(self.max_batch)),
            "queue_delay_us": range(len(self.queue_delay_us)),
            "placement": range(len(self.placements)),
            "buckets": range(len(self.buckets)),
        }

    def indices(self, point: Point) -> dict[str, int] | None:
        """The indices of a point, by axis; None if it is not in the space."""
        config = point.config
        try:
            return {
                "package": [package.variant for package in self.packages].index(point.package.variant),
                "max_batch": self.max_batch.index(config.max_batch),
                "queue_delay_us": self.queue_delay_us.index(config.queue_delay_us),
                "placement": self.placements.index((config.instances, config.threads)),
                "buckets": self._set(point.package, config.buckets),
            }
        except ValueError:
            return None

    def points(self) -> Iterator[Point]:
        """Every point, once."""
        points = (self.point(*indices) for indices in product(*self.axes.values()))
        yield from {point.key: point for point in points}.values()

    def _set(self, package: Package, buckets: Buckets) -> int:
        """The first index that gives a package these buckets. A `ValueError` if there is none."""
        return [padded_with(package, entry) for entry in self.buckets].index(buckets)


def space_of(
    packages: tuple[Package, ...],
    search_space: SearchSpace,
    serving: Serving,
    cores: int,
    lengths: Sequence[int] = (),
    *,
    steady: int = 0,
) -> Space:
    """The space on a server with this many cores. A queue policy gets at least the instances that it needs.

    `lengths` are those of the requests, if they have any. A package that can't be tuned has one configuration. `steady`
    is how many of the cores compute at full speed all the time, 0 if all do: as many are tried, too.
    """
    if not all(package.tunable for package in packages):
        (package,) = packages
        config = package.config
        return Space(
            packages=packages,
            max_batch=(config.max_batch,),
            queue_delay_us=(config.queue_delay_us,),
            placements=((config.instances, config.threads),),
            cores=cores,
        )
    least = least_instances(serving, packages[0].server)
    placements = {
        (max(instances, least), threads)
        for instances, threads in product(
            instances_of(search_space, packages[0].signature, cores, steady),
            threads_of(search_space, packages[0].engine, cores, steady),
        )
        if max(instances, least) * threads <= max(2 * cores, least)
    }
    return Space(
        packages=packages,
        max_batch=batches(search_space, serving, packages[0].signature),
        queue_delay_us=tuple(sorted(set(search_space.queue_delay_us))),
        placements=tuple(sorted(placements or {(least, 1)})),
        buckets=sets_of(packages, serving.lengths, lengths),
        cores=cores,
        steady=steady,
    )


def instances_of(space: SearchSpace, signature: Signature, cores: int, steady: int = 0) -> tuple[int, ...]:
    """The numbers of instances to try. Several instances of a model that streams would only compete."""
    if signature.streamed:
        return (1,)
    return space.instances or tuple(count for count in _counts(cores, steady) if count <= _INSTANCES)


def threads_of(space: SearchSpace, engine: Engine, cores: int, steady: int = 0) -> tuple[int, ...]:
    """The numbers of threads to try. A Python model's code decides by itself how many it uses."""
    return (1,) if engine == "python" else space.threads or _counts(cores, steady)


def _counts(cores: int, steady: int = 0) -> tuple[int, ...]:
    """Powers of two up to the number of cores, and the number itself. Two can beat one even on a single core."""
    return tuple(sorted({1, 2, steady or cores, cores, *(2**exponent for exponent in range(cores.bit_length()))}))


def batches(space: SearchSpace, serving: Serving, signature: Signature) -> tuple[int, ...]:
    """The batch sizes to try, ascending: only 1 for a graph that takes one sample at a time.

    Preferred sizes take precedence: Triton refuses a model with a smaller `max_batch`, so smaller ones are not tried.

    Raises:
        SpecInvalid: no size is left.
    """
    sizes = (1,) if signature.batch == 1 else tuple(sorted(set(space.max_batch)))
    least = max(serving.preferred_batch_size, default=1)
    if left := tuple(size for size in sizes if size >= least):
        return left
    if signature.batch == 1:
        raise SpecInvalid(
            f"serving.preferred_batch_size has {least}, but the model takes one sample at a time",
            do="Leave `serving.preferred_batch_size` out, or log the model with a dynamic batch.",
        )
    raise SpecInvalid(
        f"serving.preferred_batch_size has {least}, more than the largest search.max_batch ({sizes[-1]})",
        do=f"Add {least} or more to `search.max_batch`.",
    )


def first_config(
    space: SearchSpace, serving: Serving, server: ServerKind, signature: Signature, engine: Engine = "onnxruntime"
) -> ServingConfig:
    """Where Triton's documentation says to start: dynamic batching without delay, the fewest instances and threads."""
    sizes = batches(space, serving, signature)
    return ServingConfig(
        max_batch=sizes[len(sizes) // 2],
        queue_delay_us=min(space.queue_delay_us),
        instances=max(min(instances_of(space, signature, 1)), least_instances(serving, server)),
        threads=min(threads_of(space, engine, 1)),
    )
