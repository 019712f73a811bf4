"""What is served, by kind of model: a Triton model repository, with its golden requests."""

import operator
from typing import Any, Literal

from pydantic import Field

from shiplift.runtime.base.names import TENSORS, name_endings
from shiplift.runtime.records.artifact import Artifact
from shiplift.runtime.records.base import volatile
from shiplift.runtime.records.capturing import Capturing
from shiplift.runtime.records.drift import Drifting
from shiplift.runtime.records.guards import Guard
from shiplift.runtime.records.kinds.union import Kinded
from shiplift.runtime.records.limits import Limits
from shiplift.runtime.records.model import PythonEnvironment
from shiplift.runtime.records.precision import JpegScore, Slice, TaskMetricName, Variant
from shiplift.runtime.records.proof import ServedProof
from shiplift.runtime.records.scoring import Scoring, absent
from shiplift.runtime.records.serving import (
    BundleMember,
    EarlierVersions,
    Nodes,
    Padding,
    ServerKind,
    ServerNeeds,
    ServingConfig,
)
from shiplift.runtime.records.tensor import Signature


class Package(Kinded, Variant):
    """A Triton model repository (a tree) with a model version in one precision on one engine, and its golden requests.

    `constant_score` is that of `Candidates`. `padding` is set if the spec asks for buckets of lengths. `earlier` are
    versions that were promoted before, and are served to clients that name them. `questions` is an NPZ with rows and
    the original's answers, as `proof.file` says, in the package's own names; `proof` says that a server answered them
    alike. `scoring` is what MLflow's clients know of the model. `limits` are what its configuration allows the model
    to use, `capturing` is what production keeps of its requests, and `drifting` what these are compared with. `idle`
    says why its configuration doesn't use all cores, if it doesn't.
    """

    target: str
    server: ServerKind
    model: str
    version: int
    config: ServingConfig
    repository: Artifact
    signature: Signature
    score: float | None = None
    resamples: tuple[float, ...] = ()
    samples: int = 0
    metric: TaskMetricName | None = None
    constant_score: float = 1.0
    validation: str = ""
    slices: tuple[Slice, ...] = ()
    padding: Padding | None = None
    questions: Artifact | None = None
    proof: ServedProof | None = None
    scoring: Scoring | None = Field(default=None, exclude_if=absent)
    earlier: EarlierVersions = EarlierVersions()
    limits: Limits = Limits()
    nodes: Nodes = volatile(Nodes())
    needs: ServerNeeds = volatile(ServerNeeds())
    idle: str = Field(default="", exclude_if=operator.not_, json_schema_extra={"volatile": True})
    capturing: Capturing | None = Field(default=None, exclude_if=absent, json_schema_extra={"volatile": True})
    drifting: Drifting | None = Field(default=None, exclude_if=absent, json_schema_extra={"volatile": True})

    @property
    def versions(self) -> list[int]:
        """Every version that it serves, in ascending order. The last one answers clients that name none."""
        return [*(each.version for each in self.earlier.versions), self.version]

    # --- what servers ask of any kind of package ---

    @property
    def stateful(self) -> bool:
        """Whether each request belongs to a sequence. The golden requests are then the steps of one."""
        return False

    @property
    def python_environment(self) -> PythonEnvironment | None:
        """The environment of a model's own Python code: servers need it in addition to their own."""
        return None

    @property
    def member_models(self) -> tuple[str, ...]:
        """The other models in the repository, which the package's main model calls, in the order to load them."""
        return ()

    @property
    def tunable(self) -> bool:
        """Whether tuning may change its configuration."""
        return True

    @property
    def takes_whole(self) -> bool:
        """Whether requests have its tensors' whole shapes: Triton adds no batch dimension."""
        return False

    @property
    def called_endings(self) -> tuple[str, ...]:
        """The suffixes of the served models that the package's main model calls, in the order to load them."""
        return ()

    @property
    def brings_python(self) -> bool:
        """Whether the package runs Python in environments of its own; on a cluster, it contains these as layers."""
        return self.python_environment is not None

    @property
    def graph_tensors(self) -> Signature | None:
        """The tensors of the graph behind a front, if the graph is also served."""
        return None

    @property
    def endings(self) -> tuple[str, ...]:
        """The suffixes of the repository's models, after the name under which the package is served."""
        return name_endings(tensors=self.graph_tensors is not None)

    # --- packages of 0.1, which production keeps ---

    @classmethod
    def _kind_of_old(cls, old: dict[str, Any]) -> str:
        """Recognises the kind by the fields that only one kind used.

        A model of texts that was neither scored by its tokens' lengths nor served with its tensors left no trace of its
        kind. It is served, compared and kept like a graph with the same inputs.
        """
        tensors = old.get("tensors")
        front = _front_of(Signature.model_validate(tensors)) if tensors else ""
        signs = {
            "pipeline": old.get("companions") or old.get("members"),
            "generation": Signature.model_validate(old["signature"]).streamed,
            "python": old.get("environment"),
            "decoder": old.get("engine") == "python",
            "image": front == "image" or old.get("jpegs"),
            "text": front == "text" or (old.get("padding") or {}).get("lengths"),
        }
        return next((kind for kind, sign in signs.items() if sign), "graph")


def _front_of(tensors: Signature) -> str:
    """The kind of front before a graph: a tokenizer gives it integers, and an image's decoding gives it pixels."""
    return "text" if all(spec.datatype == "INT64" for spec in tensors.inputs) else "image"


class GraphPackage(Package):
    """A graph. `sequences`: it has states, so each request belongs to a sequence. Requests keep to the `guards`."""

    kind: Literal["graph"] = "graph"
    sequences: bool = False
    guards: tuple[Guard, ...] = ()

    @property
    def stateful(self) -> bool:
        """As the spec says."""
        return self.sequences


class FrontPackage(Package):
    """A graph behind a front. `tensors` are the graph's, if it is also served, as always on NVIDIA's server."""

    tensors: Signature | None = None

    @property
    def called_endings(self) -> tuple[str, ...]:
        """The graph's. The bundled server runs the graph in the front's own process."""
        return (TENSORS,) if self.server == "nvidia" else ()

    @property
    def brings_python(self) -> bool:
        """NVIDIA's server lacks the libraries of fronts."""
        return self.server == "nvidia"

    @property
    def graph_tensors(self) -> Signature | None:
        """The tensors that the front makes of texts or images."""
        return self.tensors


class TextPackage(FrontPackage):
    """A graph behind a tokenizer."""

    kind: Literal["text"] = "text"


class ImagePackage(FrontPackage):
    """A graph behind the decoding of images. `jpegs` are scores on compressed images."""

    kind: Literal["image"] = "image"
    jpegs: tuple[JpegScore, ...] = ()


class PythonPackage(Package):
    """A Python model, and its environment."""

    kind: Literal["python"] = "python"
    environment: PythonEnvironment

    @property
    def python_environment(self) -> PythonEnvironment:
        """The model's own."""
        return self.environment


class GenerationPackage(Package):
    """A model that continues texts."""

    kind: Literal["generation"] = "generation"


class PipelinePackage(Package):
    """A pipeline of models. `members` are its parts, `companions` their names in the repository.

    No other package has models with these names. `environment` is that of the members that are Python models.
    """

    kind: Literal["pipeline"] = "pipeline"
    padding: None = None
    environment: PythonEnvironment | None = None
    companions: tuple[str, ...] = ()
    members: tuple[BundleMember, ...] = ()

    @property
    def python_environment(self) -> PythonEnvironment | None:
        """The environment of its Python members."""
        return self.environment

    @property
    def member_models(self) -> tuple[str, ...]:
        """The names of its members, steps and decoders in the repository."""
        return self.companions

    @property
    def tunable(self) -> bool:
        """No: its members were tuned when they were released, and its definition says how much it does at once."""
        return False

    @property
    def takes_whole(self) -> bool:
        """Yes: its tensors need not have the same number of rows."""
        return True

    @property
    def brings_python(self) -> bool:
        """Whether a member does."""
        return super().brings_python or any(name.endswith(TENSORS) for name in self.companions)


class AdoptedPackage(Package):
    """A model of a Triton repository, configured as it was there. `companions` are the models that it calls.

    They have the names that they have in this repository, and no other package's models do. `batches`: Triton adds a
    batch dimension to its tensors.
    """

    kind: Literal["adopted"] = "adopted"
    padding: None = None
    companions: tuple[str, ...] = ()
    batches: bool = True

    @property
    def described(self) -> str:
        """For people."""
        return "as it was adopted"

    @property
    def member_models(self) -> tuple[str, ...]:
        """The models that an ensemble calls."""
        return self.companions

    @property
    def tunable(self) -> bool:
        """No: it is measured as it was."""
        return False

    @property
    def takes_whole(self) -> bool:
        """Whether it takes no batches."""
        return not self.batches


class DecoderPackage(Package):
    """The decoding of images, as a member of a pipeline."""

    kind: Literal["decoder"] = "decoder"
