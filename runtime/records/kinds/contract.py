"""What the author of a version declared, by kind of model."""

from typing import Any, Literal

from pydantic import Field

from shiplift.runtime.records.artifact import Artifact
from shiplift.runtime.records.kinds.union import Kinded
from shiplift.runtime.records.model import Obstacle, Requirement
from shiplift.runtime.records.scoring import Scoring, absent
from shiplift.runtime.records.tensor import Signature


class Contract(Kinded):
    """What the author declared: the signature, and the input example as an NPZ of arrays by input name.

    The signature is the graph's for ONNX, otherwise the logged one. `notes` say what was derived instead of declared.
    `scoring` is the logged one as MLflow's own clients know it.
    """

    signature: Signature
    example: Artifact
    notes: tuple[str, ...] = ()
    scoring: Scoring | None = Field(default=None, exclude_if=absent)

    @classmethod
    def _kind_of_old(cls, old: dict[str, Any]) -> str:
        """0.1 distinguished only text generators from other kinds; `Admitted` knows more."""
        if old.get("generates"):
            return "generation"
        return super()._kind_of_old(old)

    @classmethod
    def _renamed(cls, old: dict[str, Any]) -> dict[str, Any]:
        return {name: value for name, value in old.items() if name != "generates"}


class DeclaredGraph(Contract):
    """A model that becomes a graph of tensors. `tabular`: its inputs are the columns of a data frame.

    `requirements` are the packages of the library that may serve it as it was logged, where it has no right graph.
    `no_python` says why that library can't (None: it can).
    """

    kind: Literal["graph"] = "graph"
    tabular: bool = False
    requirements: tuple[Requirement, ...] = ()
    no_python: Obstacle | None = None


class DeclaredText(Contract):
    """A model that takes texts. Its outputs depend only on its task, so the export determines them."""

    kind: Literal["text"] = "text"


class DeclaredImage(Contract):
    """A model that takes images, by its task."""

    kind: Literal["image"] = "image"


class DeclaredPython(Contract):
    """A Python model, and the packages that it needs. `tabular`: as for a graph."""

    kind: Literal["python"] = "python"
    tabular: bool = False
    requirements: tuple[Requirement, ...] = ()


class DeclaredGeneration(Contract):
    """A model that continues texts; the example holds prompts."""

    kind: Literal["generation"] = "generation"


class DeclaredAdopted(Contract):
    """A model of a Triton repository; the example holds its requests, one row for each."""

    kind: Literal["adopted"] = "adopted"


class DeclaredPipeline(Contract):
    """A pipeline of models; the example holds its requests, one row for each."""

    kind: Literal["pipeline"] = "pipeline"
