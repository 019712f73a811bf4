"""How a package is served: its configuration, its nodes, what its server needs, and what else it serves."""

from typing import Literal

from pydantic import Field

from shiplift.runtime.records.base import Record, volatile
from shiplift.runtime.records.precision import Precision
from shiplift.runtime.records.tensor import Signature

ServerKind = Literal["bundled", "nvidia"]


class ServingConfig(Record):
    """What tuning decides: one point of the search space.

    Requests are padded to the smallest of the `buckets` that holds them; none: only requests of equal length share a
    batch.
    """

    max_batch: int = Field(ge=1)
    queue_delay_us: int = Field(ge=0)
    instances: int = Field(ge=1)
    threads: int = Field(ge=1)
    buckets: tuple[int, ...] = ()


class Padding(Record):
    """How a package pads its requests to common lengths: the value for each input, and the outputs that are cut back.

    It is proven that padding to each of `buckets` changes no answer. `refused` says why there are none. `pad` has no
    inputs if the model takes text, since its tokenizer knows; `lengths` are then the example texts', in tokens.
    """

    pad: dict[str, float] = Field(default_factory=dict)
    cut: tuple[str, ...] = ()
    buckets: tuple[int, ...] = ()
    refused: str = ""
    lengths: tuple[int, ...] = ()


class Nodes(Record):
    """Which nodes of a cluster may serve a package: its target's choice, in Kubernetes' own terms."""

    selector: dict[str, str] = Field(default_factory=dict)
    tolerations: tuple[dict[str, str], ...] = ()
    gpus: int = Field(0, ge=0)
    image: str = ""


class ServerNeeds(Record):
    """What a server must be started with for a package's configuration to take effect.

    `request_timeout_s` is the longest that one of its executions may take, and so the least to wait before a server
    that answers nobody counts as stuck.
    """

    rate_limiter: bool = False
    flags: tuple[str, ...] = ()
    request_timeout_s: float = 30


class BundleMember(Record):
    """A member of a pipeline's bundle, by the pipeline's `name` for it; `served` is its name in the server.

    `follows`: it is whatever the model's champion is.
    """

    name: str
    served: str
    model: str
    version: int
    follows: bool
    signature: Signature | None = None
    precision: Precision = "fp32"


class EarlierVersion(Record):
    """A version that a package serves beside its own, and the precision that its answers may be off by."""

    version: int
    precision: Precision


class EarlierVersions(Record):
    """The earlier versions that a package serves beside its own, in ascending order; `refused` says why not more."""

    versions: tuple[EarlierVersion, ...] = ()
    refused: str = volatile("")
