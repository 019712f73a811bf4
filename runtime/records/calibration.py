"""What a machine's calibration measured: how fast each form of a few generated graphs is on it."""

from typing import Literal

from shiplift.runtime.records.base import Record
from shiplift.runtime.records.precision import Variant

# dense: matrix products that keep the cores busy; small: a network whose calls cost more than its arithmetic.
GraphKind = Literal["dense", "small", "trees"]


class Rate(Variant):
    """The rows per second that a form of a graph answered, by all its instances together.

    `batch` rows were given at a time to each of `instances`, which computed on `threads` threads.
    """

    graph: GraphKind
    instances: int
    threads: int
    batch: int
    rows_per_s: float


class Unavailable(Variant):
    """A form that this machine can't run, and why."""

    graph: GraphKind
    why: str


class Calibrating(Record):
    """How to calibrate. `quick`: fewer cases in shorter windows. `force`: even if there is a valid calibration."""

    quick: bool = False
    force: bool = False


class Calibration(Record):
    """A machine's cost model: measured once, and valid for its processor, its cores and the engines' versions.

    `cpu_share` is how many of `cores` a container's quota allows. `features` are those by which precisions are chosen,
    `capabilities` what OpenVINO says that it computes in. `disturbed_cores` is how many cores other processes used
    meanwhile, if that was enough to matter. `measured_at` is in seconds since 1970.
    """

    processor: str
    architecture: str
    features: tuple[str, ...]
    capabilities: tuple[str, ...] = ()
    cores: int
    cpu_share: float
    versions: dict[str, str]
    rates: tuple[Rate, ...]
    unavailable: tuple[Unavailable, ...] = ()
    quick: bool = False
    seconds: float = 0.0
    disturbed_cores: float = 0.0
    measured_at: float = 0.0
