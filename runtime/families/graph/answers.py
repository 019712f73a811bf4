"""The engines' answers to golden requests, and whether they may pad them: both are determined in a sandbox.

A model may never answer, so only a process that can be killed asks it.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from shiplift.runtime.confinement.policy import SandboxLimits
from shiplift.runtime.confinement.workplace import Workplace
from shiplift.runtime.families.packaging.draft import GoldenAnswers
from shiplift.runtime.families.packaging.maker import E, Maker
from shiplift.runtime.host.outputs import require_regular
from shiplift.runtime.model.tensors import load_npz
from shiplift.runtime.precision import tensorrt_plans
from shiplift.runtime.records.artifact import Artifact
from shiplift.runtime.records.kinds.exported import Front
from shiplift.runtime.records.precision import Candidate, Engine, Precision
from shiplift.runtime.records.serving import Padding
from shiplift.runtime.records.trees import CHECKPOINT
from shiplift.runtime.search import buckets

_GPU_ONLY: tuple[Precision, ...] = ("bf16", "fp8")
_Asked = tuple[Artifact, Engine, Precision]


class GraphAnswers(Maker[E]):
    """Makes packages of graphs. Their golden answers come from the engine that will run them."""

    @property
    def front(self) -> Front | None:
        """What surrounds the graph, if anything does."""
        return None

    @property
    def native(self) -> bool:
        """Whether PyTorch itself serves the model."""
        return self.work.target.engine == "pytorch"

    def check_model(self, model: Path) -> None:
        """Checks that a TensorRT plan is for the target's GPU and version."""
        if stamp := tensorrt_plans.read_stamp(model):
            tensorrt_plans.require_match(stamp, self.work.target)

    def answers(self, place: Workplace, candidates: Sequence[Candidate], limits: SandboxLimits) -> list[GoldenAnswers]:
        """Each candidate's answers. Equal files on equal engines are asked only once."""
        asked = [self._asked(candidate) for candidate in candidates]
        index = {key: number for number, key in enumerate(dict.fromkeys((m.sha256, *engine) for m, *engine in asked))}
        numbers = [index[model.sha256, *engine] for model, *engine in asked]
        files = {model.sha256: model for model, *_ in asked}
        folders = {digest: self.work.store.fetch(model, place.folder / digest) for digest, model in files.items()}
        models = [
            {
                "file": str(folders[digest] / (CHECKPOINT if engine == "trees" else "model.onnx")),
                "engine": engine,
                "precision": precision,
                "trees": self._trees() if engine == "trees" else None,
            }
            for digest, engine, precision in index
        ]
        order = self._order(place) | {"models": models, "lengths": self._lengths(candidates, numbers)}
        result, _ = place.sandbox.run(order, limits)
        require_regular(place.sandbox.work)
        return [
            GoldenAnswers(
                outputs=load_npz(place.sandbox.work / f"{number}.npz"),
                padding=self.refusal(candidate) or _proven(result["padding"].get(str(number))),
            )
            for candidate, number in zip(candidates, numbers, strict=True)
        ]

    def _order(self, place: Workplace) -> dict[str, Any]:
        store, (visible, states) = self.work.store, self.visible()
        return {
            "reference": str(store.fetch(self.reference, place.folder / "reference.npz")),
            "inputs": [spec.name for spec in visible.inputs],
            "outputs": [spec.name for spec in self.work.exported.signature.outputs],
            "states": {name: output.model_dump(mode="json") for name, output in states.items()},
            "text": self._text(place.folder / "text", self.front) if self.front else None,
            "out": str(place.sandbox.work),
        }

    def _text(self, to: Path, front: Front) -> dict[str, Any]:
        return {"front": str(self.work.store.fetch(front.files, to)), "tensors": self.serves_tensors}

    def _asked(self, candidate: Candidate) -> _Asked:
        """The model that gives the expected answers: fp32's, if no engine here runs the candidate on a CPU."""
        if candidate.engine in ("openvino", "trees"):
            return self.model_of(candidate), candidate.engine, candidate.precision
        if candidate.precision in _GPU_ONLY or self.native:
            return self.work.exported.model, "onnxruntime", "fp32"
        return self.model_of(candidate), "onnxruntime", "fp32"

    def _trees(self) -> dict[str, Any]:
        form, signature = self.forest(), self.work.exported.signature
        return {"form": form.model_dump(mode="json") if form else None, "signature": signature.model_dump(mode="json")}

    def _lengths(self, candidates: Sequence[Candidate], numbers: Sequence[int]) -> dict[str, Any] | None:
        """What the sandbox must prove about padding, for the models with these numbers; None if nothing."""
        lengths = self.work.serving.lengths
        if lengths is None:
            return None
        return {
            "pad": lengths.pad,
            "buckets": buckets.to_prove(lengths),
            "every": lengths.buckets != "auto",
            "tolerances": {
                str(number): buckets.TOLERANCE[candidate.precision]
                for candidate, number in zip(candidates, numbers, strict=True)
                if not self.refusal(candidate)
            },
        }


def _proven(proof: dict[str, Any] | None) -> Padding | None:
    """What the sandbox proved about a model; None if it was not asked to."""
    return Padding.model_validate(proof) if proof else None
