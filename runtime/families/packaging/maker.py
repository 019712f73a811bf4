"""How a package is made: the same steps for every kind of model, and what each kind does in them."""

import shutil
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, Generic, TypeVar

from shiplift.runtime.base.errors import SpecInvalid
from shiplift.runtime.base.names import name_endings
from shiplift.runtime.confinement.policy import SandboxLimits
from shiplift.runtime.confinement.workplace import Workplace
from shiplift.runtime.families.packaging.draft import Draft, GoldenAnswers, common_fields, described
from shiplift.runtime.families.packaging.questions import of_reference
from shiplift.runtime.families.work import Packaging
from shiplift.runtime.model.tensors import GOLDEN_SAMPLES, Arrays, batch_of, dump_npz, inputs_in, load_npz
from shiplift.runtime.records.artifact import Artifact
from shiplift.runtime.records.kinds.exported import Exported
from shiplift.runtime.records.kinds.package import Package
from shiplift.runtime.records.model import PythonEnvironment
from shiplift.runtime.records.precision import Candidate, Engine
from shiplift.runtime.records.serving import Padding, ServingConfig
from shiplift.runtime.records.tensor import Signature, TensorSpec
from shiplift.runtime.records.trees import TreesForm
from shiplift.runtime.search import buckets
from shiplift.runtime.search.space import first_config
from shiplift.runtime.serving.packaging.earlier_versions import Incumbent, Successor, add_earlier
from shiplift.runtime.serving.triton.repository import golden_arrays

E = TypeVar("E", bound=Exported)


@dataclass(frozen=True)
class Maker(ABC, Generic[E]):
    """Makes the packages of one exported model for one target."""

    work: Packaging[E]
    takes_text: ClassVar[bool] = False  # if so, its tokenizer says how requests are padded
    tuned_as: ClassVar[Engine] = "onnxruntime"  # tuning starts from this engine's first configuration

    # --- what each kind does ---

    @property
    def reference(self) -> Artifact:
        """The requests, with the original's answers."""
        return self.work.exported.reference

    @property
    def environment(self) -> PythonEnvironment | None:
        """The environment of the model's own code, if that code serves it."""
        return None

    @property
    def serves_tensors(self) -> bool:
        """Whether the graph is served beside the model."""
        return self.work.serving.tensors

    def visible(self) -> tuple[Signature, Mapping[str, TensorSpec]]:
        """The signature that clients see, and the states that they don't see."""
        return self.work.exported.signature, {}

    def servable(self, kept: Sequence[Candidate]) -> list[Candidate]:
        """The candidates whose engine has a backend for the model.

        Raises:
            SpecInvalid: the spec asks for something that the model or the target lacks.
        """
        if self.work.serving.tensors:
            raise SpecInvalid(
                "`serving.tensors` is for models that take text or images; this one takes tensors already",
                do="Leave `serving.tensors` out of the spec.",
            )
        return list(kept)

    @abstractmethod
    def answers(self, place: Workplace, candidates: Sequence[Candidate], limits: SandboxLimits) -> list[GoldenAnswers]:
        """Each candidate's answers to the golden requests."""

    def model_of(self, candidate: Candidate) -> Artifact:
        """The files that the server loads."""
        assert candidate.model is not None  # noqa: S101 - candidates that were not built are never packaged
        return candidate.model

    def forest(self) -> TreesForm | None:
        """How the model's exact trees answer, if it has any."""
        return None

    def check_model(self, model: Path) -> None:
        """Checks that the files can be served on the target.

        Raises:
            QuantizeFailed: they were built for another target.
        """

    def requests(self, answered: GoldenAnswers) -> tuple[Arrays, Arrays]:
        """The inputs of the example, and the golden requests with the right answers."""
        inputs = inputs_in(self.arrays, self.visible()[0])
        return inputs, golden_arrays(batch_of(inputs, GOLDEN_SAMPLES), answered.outputs)

    def as_served(self, signature: Signature, inputs: Arrays, golden: Arrays) -> tuple[Signature, Arrays, Arrays]:
        """The same with the names that clients of the target's server use."""
        return signature, inputs, golden

    def served_questions(self) -> Artifact | None:
        """The rows that the packaged server is asked, in the names that its clients use; None: it is asked none.

        They are the requests that the export compared, with the original's answers.
        """
        return self.work.store.put_bytes(dump_npz(of_reference(self.arrays, self.visible()[0])))

    @abstractmethod
    def write(self, draft: Draft) -> None:
        """Writes the repository and the golden requests into the draft's tree."""

    @abstractmethod
    def record(self, draft: Draft, common: dict[str, Any]) -> Package:
        """The package, from the fields that all packages have in `common`."""

    # --- the same for all kinds ---

    def check_lengths(self) -> None:
        """Checks that the spec's lengths are the model's.

        Raises:
            SpecInvalid: they are not.
        """
        if lengths := self.work.serving.lengths:
            buckets.check_pad(lengths, self.work.exported.signature, text=self.takes_text)

    def refusal(self, candidate: Candidate) -> Padding | None:
        """Why a candidate can't pad requests, whatever a proof would say; None if it can or need not."""
        lengths = self.work.serving.lengths
        problem = self.padding_problem(candidate) if lengths else ""
        return Padding(pad=lengths.pad, refused=problem) if lengths and problem else None

    def padding_problem(self, candidate: Candidate) -> str:
        """Why a candidate can't be served with the spec's buckets of lengths; empty if it can."""
        lengths, signature = self.work.serving.lengths, self.work.exported.signature
        if lengths is None:
            return ""
        return buckets.problem(lengths, signature, candidate.engine, self.work.target, text=self.takes_text)

    @cached_property
    def arrays(self) -> Arrays:
        """The reference's arrays, read once."""
        return load_npz(self.work.store.read(self.reference))

    @cached_property
    def config(self) -> ServingConfig:
        """The configuration that tuning starts from."""
        work = self.work
        return first_config(work.search_space, work.serving, work.target.server, work.exported.signature, self.tuned_as)

    def make(self, folder: Path, candidate: Candidate, answered: GoldenAnswers, incumbent: Incumbent | None) -> Package:
        """The package of one candidate, made in `folder`, with golden requests that its engine answered."""
        draft = self._draft(folder, candidate, answered)
        self.write(draft)
        work = self.work
        successor = Successor(
            tree=draft.tree,
            version=work.version.version,
            target=work.target,
            environment=self.environment,
            endings=name_endings(tensors=self.serves_tensors),
        )
        earlier = add_earlier(successor, incumbent, work.serving.version_policy)
        common = common_fields(work, draft) | {
            "earlier": earlier,
            "repository": work.store.put_tree(draft.tree),
            "questions": self.served_questions(),
        }
        shutil.rmtree(folder)
        return self.record(draft, common)

    def _draft(self, folder: Path, candidate: Candidate, answered: GoldenAnswers) -> Draft:
        visible, states = self.visible()
        model = self.work.store.fetch(self.model_of(candidate), folder / "model")
        self.check_model(model)
        signature, inputs, golden = self.as_served(visible, *self.requests(answered))
        (folder / "package").mkdir()
        return Draft(
            folder=folder,
            tree=folder / "package",
            model=model,
            candidate=candidate,
            described=described(self.work, self.config, candidate, signature, states, answered.padding, self.forest()),
            inputs=inputs,
            golden=golden,
            answered=answered,
        )
