"""What a version was exported to, by kind of model."""

from typing import Any, Literal

from pydantic import Field

from shiplift.runtime.records.artifact import Artifact
from shiplift.runtime.records.base import Record, volatile
from shiplift.runtime.records.kinds.union import Kinded
from shiplift.runtime.records.model import Isolation, ParityCase, PythonModel
from shiplift.runtime.records.precision import Precision
from shiplift.runtime.records.proof import Form, FormName, Proof
from shiplift.runtime.records.scoring import Scoring, absent
from shiplift.runtime.records.tensor import Signature
from shiplift.runtime.records.trees import ExactTrees


class Front(Record):
    """The code and data (a tree) that make a graph's inputs from texts or images, and answers from its outputs.

    `signature` is what clients see. `reference` is an NPZ with texts or images as `input/NAME` and the original's
    answers as `output/NAME`.
    """

    files: Artifact
    signature: Signature
    reference: Artifact


class Exported(Kinded):
    """The model as it will be served (a tree), verified against the original.

    `reference` is an NPZ with the example inputs as `input/NAME` and the original's outputs as `output/NAME`. `graph`
    is the digest of the graph without its weights; findings about a graph are kept under it. `forms` are those that
    were tried, in order. `scoring` is what MLflow's clients know of the model. `proof_seconds` is what asking the
    original and the forms took.
    """

    model: Artifact
    signature: Signature
    graph: str = ""
    parity: tuple[ParityCase, ...]
    reference: Artifact
    isolation: Isolation | None = volatile(None)
    notes: tuple[str, ...] = ()
    forms: tuple[Form, ...] = ()
    scoring: Scoring | None = Field(default=None, exclude_if=absent)
    proof_seconds: float = volatile(0.0)

    @property
    def judged(self) -> bool:
        """Whether `mlflow.pyfunc` says what is right, row by row."""
        return True

    @property
    def python_model(self) -> PythonModel | None:
        """How the author's own code runs, if it serves the model."""
        return None

    @classmethod
    def _kind_of_old(cls, old: dict[str, Any]) -> str:
        """0.1 had one record for all. A tokenizer gives a graph integers, and an image's decoding gives it pixels."""
        if old.get("composes"):
            return "pipeline"
        if old.get("generates"):
            return "generation"
        if old.get("python"):
            return "python"
        if old.get("text"):
            whole = all(spec.datatype == "INT64" for spec in Signature.model_validate(old["signature"]).inputs)
            return "text" if whole else "image"
        return "graph"

    @classmethod
    def _renamed(cls, old: dict[str, Any]) -> dict[str, Any]:
        fields = {name: value for name, value in old.items() if name not in ("composes", "generates", "text")}
        return fields | ({"front": old["text"]} if old.get("text") else {})


class ExportedGraph(Exported):
    """An ONNX graph (a tree holding `model.onnx`), and the proof that it is the model.

    `torchscript` is the original itself (a tree holding `model.pt`), if the spec asks for it. `trees` are those of an
    ensemble as they were trained, if they answer what the original does. `form` is what was proved: where that is the
    trees, nothing is made of the graph. `asked` is an NPZ with rows of the proof and the original's answers, as
    `proof.file` says: the packaged server is asked them again.
    """

    kind: Literal["graph"] = "graph"
    opset: int
    proof: Proof | None = None
    asked: Artifact | None = None
    torchscript: Artifact | None = None
    trees: ExactTrees | None = None
    form: FormName = "FP32 graph"

    @property
    def precision(self) -> Precision:
        """What the graph computes in."""
        return "fp64" if self.form == "FP64 graph" else "fp32"

    @property
    def differs(self) -> str:
        """How the graph answers otherwise than the model, whose trees alone are served; empty: it doesn't."""
        graphs = [each.dropped for each in self.forms if each.dropped and each.name != "exact trees"]
        return graphs[0] if self.form == "exact trees" and graphs else ""


class ExportedText(Exported):
    """An ONNX graph of tokens, and the front that makes them from texts."""

    kind: Literal["text"] = "text"
    opset: int
    front: Front


class ExportedImage(Exported):
    """An ONNX graph of pixels, and the front that makes them from images."""

    kind: Literal["image"] = "image"
    opset: int
    front: Front


class ExportedPython(Exported):
    """A Python model as it was logged, how it runs, and the proof that it answers in production as it does alone.

    `asked` has rows of the proof, as that of graphs.
    """

    kind: Literal["python"] = "python"
    python: PythonModel
    proof: Proof | None = None
    asked: Artifact | None = None

    @property
    def python_model(self) -> PythonModel:
        """The logged one."""
        return self.python


class ExportedGeneration(Exported):
    """A model that continues texts: the folder that OpenVINO GenAI takes, with its tokenizer."""

    kind: Literal["generation"] = "generation"

    @property
    def judged(self) -> bool:
        """No: it draws tokens."""
        return False


class ExportedPipeline(Exported):
    """A pipeline of models as it was logged. Nothing was run for it, so its `reference` has only inputs."""

    kind: Literal["pipeline"] = "pipeline"
    parity: tuple[()] = ()
    isolation: None = volatile(None)

    @property
    def judged(self) -> bool:
        """No: its members are."""
        return False


class ExportedAdopted(Exported):
    """A model of a Triton repository as it was adopted. Nothing was run for it, so its `reference` has only inputs."""

    kind: Literal["adopted"] = "adopted"
    parity: tuple[()] = ()
    isolation: None = volatile(None)

    @property
    def judged(self) -> bool:
        """No: its own answers are the right ones."""
        return False
