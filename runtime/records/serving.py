"""How a package is served: its configuration, its nodes, what its server needs, and what else it serves."""

from typing import Literal

from pydantic import Field

from shiplift.runtime.records.base import Record, volatile
from shiplift.runtime.records.precision import Precision
from shiplift.runtime.records.tensor import Signature

ServerKind = Literal["bundled", "nvidia"]


class ServingConfig(Record):
    """The settings that tuning decides: one point of the search space.

    Requests are padded to the smallest of the `buckets` that holds them. Without buckets, only requests of equal length
    share a batch.
    """

    max_batch: int = Field(ge=1)
    queue_delay_us: int = Field(ge=0)
    instances: int = Field(ge=1)
    threads: int = Field(ge=1)
    buckets: tuple[int, ...] = ()


class Padding(Record):
    """How a package pads its requests to common lengths: the value for each input, and the outputs that are cut back.

    Padding to each of `buckets` is proven to change no answer. `refused` says why there are none. `pad` has no inputs
    if the model takes text, since its tokenizer pads; `lengths` are then the example texts', in tokens.
    """

    pad: dict[str, float] = Field(default_factory=dict)
    cut: tuple[str, ...] = ()
    buckets: tuple[int, ...] = ()
    refused: str = ""
    lengths: tuple[int, ...] = ()


class Nodes(Record):
    """The cluster nodes that may serve a package, as its target selects them, in Kubernetes' own terms."""

    selector: dict[str, str] = Field(default_factory=dict)
    tolerations: tuple[dict[str, str], ...] = ()
    gpus: int = Field(0, ge=0)
    image: str = ""


class ServerNeeds(Record):
    """The settings with which a server must be started for a package's configuration to take effect.

    `request_timeout_s` is the longest that one of its executions may take, and so the minimum wait before a silent
    server counts as stuck.
    """

    rate_limiter: bool = False
    flags: tuple[str, ...] = ()
    request_timeout_s: float = 30


class BundleMember(Record):
    """A member of a pipeline's bundle, by the pipeline's `name` for it; `served` is its name in the server.

    `follows`: it is always the model's current champion.
    """

    name: str
    served: str
    model: str
    version: int
    follows: bool
    signature: Signature | None = None
    precision: Precision = "fp32"


class EarlierVersion(Record):
    """A version that a package serves in addition to its own, and the precision by which its answers may be off."""

    version: int
    precision: Precision


class EarlierVersions(Record):
    """The earlier versions that a package also serves, in ascending order; `refused` says why there are not more."""

    versions: tuple[EarlierVersion, ...] = ()
    refused: str = volatile("")
