"""A checked pipeline of models: its members as they were promoted, its edges, and how it runs."""

from typing import Literal

from pydantic import Field

from shiplift.runtime.records.base import Record
from shiplift.runtime.records.kinds.package import Package
from shiplift.runtime.records.tensor import Datatype
from shiplift.runtime.spec.pipeline import TensorType

Way = Literal["ensemble", "bls"]


class PipelineProblem(Record):
    """A mistake in a pipeline: where (a path in the file and its line, 0 if unknown), what, and how to correct it."""

    path: str
    line: int = 0
    what: str
    do: str

    def __str__(self) -> str:
        where = f"line {self.line}, {self.path}" if self.line else self.path
        stop = "" if self.what.endswith((".", "?")) else "."
        return f"{where}: {self.what}{stop} {self.do}"


class Unusable(Record):
    """Why a version can't be a member, and what to do about it."""

    what: str
    do: str


class CheckedMember(Record):
    """A member as it was promoted; `name` is the pipeline's name for it."""

    name: str
    package: Package


class Edge(Record):
    """A tensor on its way from one step to another; an empty step name is the client.

    `shape` combines what both ends know about it.
    """

    tensor: str
    giver: str
    taker: str
    datatype: Datatype
    shape: tuple[int, ...]


class CheckedPipeline(Record):
    """A pipeline after its check. With `problems` it can't run; the other fields hold what could still be determined.

    `order` has the steps, each after those whose tensors it takes; `tensors` are what they give when they run.
    `reasons` say why it needs BLS; a static graph has none, and is an ensemble. `workers` is how many processes run its
    Python, 0 if it has none. `digest` names the bundle: the definition, the code, and every member's package.
    """

    name: str
    way: Way
    reasons: tuple[str, ...] = ()
    workers: int = 0
    order: tuple[str, ...] = ()
    edges: tuple[Edge, ...] = ()
    tensors: dict[str, TensorType] = Field(default_factory=dict)
    members: tuple[CheckedMember, ...] = ()
    problems: tuple[PipelineProblem, ...] = ()
    digest: str = ""
