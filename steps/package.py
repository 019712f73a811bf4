"""Packaging: a Triton model repository per kept precision, with golden requests that verify it wherever it is loaded.

The quality gates are judged here too, so that a model that can't pass ends its release before it is measured.
"""

from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from shiplift.runtime.base.errors import SpecInvalid
from shiplift.runtime.base.names import serving_name
from shiplift.runtime.gates.quality import parity_check, score_check
from shiplift.runtime.model import onnx_models
from shiplift.runtime.model.sequences import answer_sequence, hide_states
from shiplift.runtime.model.tensors import Arrays, batch_of, load_npz
from shiplift.runtime.precision import tensorrt_plans
from shiplift.runtime.records.artifact import Artifact
from shiplift.runtime.records.model import Exported, ModelVersion
from shiplift.runtime.records.precision import Candidate, Candidates, Precision
from shiplift.runtime.records.serving import Package, ServingConfig
from shiplift.runtime.records.site import Site
from shiplift.runtime.records.tensor import Signature, TensorSpec
from shiplift.runtime.records.verdict import Check, Outcome, Packages
from shiplift.runtime.search.space import first_config
from shiplift.runtime.serving.triton.config import ModelDescription, positional, server_needs
from shiplift.runtime.serving.triton.repository import golden_arrays, write_package
from shiplift.runtime.spec.measurement import SearchSpace
from shiplift.runtime.spec.model import Data, Quality
from shiplift.runtime.spec.serving import Serving
from shiplift.runtime.spec.target import Target
from shiplift.runtime.store.artifacts import ArtifactStore

_GOLDEN_SAMPLES = 8
_GPU_ONLY: tuple[Precision, ...] = ("bf16", "fp8")


def package(
    site: Site, target: Target, model_version: ModelVersion, exported: Exported, candidates: Candidates,
    quality: Quality, data: Data, search_space: SearchSpace, serving: Serving,
) -> Packages:  # fmt: skip
    """One package per kept candidate, in their order, with the configuration that tuning starts from.

    Raises:
        StorageFull: no space is left.
        ArtifactCorrupt: a model is missing or altered.
        QuantizeFailed: a TensorRT plan is for another target.
        SpecInvalid: the target needs TorchScript, which was not exported; or the spec's states are not the model's.
    """
    checks = _quality(exported, candidates, quality, data)
    if any(check.verdict is not Outcome.PASS for check in checks):
        return Packages(target=target.name, packages=(), checks=checks)
    store = ArtifactStore(site.artifacts_uri)
    builder = _Builder(
        site=site, store=store, target=target, version=model_version, exported=exported, serving=serving,
        config=first_config(search_space, serving, target.server),
        reference=load_npz(store.read(exported.reference)),
    )  # fmt: skip
    evaluation = {"metric": candidates.metric, "validation": candidates.validation}
    packages = tuple(
        builder.build(candidate, evaluation) for candidate in candidates.kept if candidate.model is not None
    )
    return Packages(target=target.name, packages=packages, checks=checks)


@dataclass(frozen=True, kw_only=True)
class _Builder:
    """What all packages of one target have in common."""

    site: Site
    store: ArtifactStore
    target: Target
    version: ModelVersion
    exported: Exported
    serving: Serving
    config: ServingConfig
    reference: Arrays

    def build(self, candidate: Candidate, evaluation: dict[str, Any]) -> Package:
        """The package of one candidate, with golden requests that ONNX Runtime answered."""
        visible, states = hide_states(self.exported.signature, self.serving.sequence_batching)
        with TemporaryDirectory(prefix="shiplift-package-", dir=self.site.home) as folder:
            model = self.store.fetch(self._model(candidate), Path(folder) / "model")
            if stamp := tensorrt_plans.read_stamp(model):
                tensorrt_plans.require_match(stamp, self.target)
            reference = model
            if candidate.precision in _GPU_ONLY or self.native:  # ONNX Runtime can't run it on a CPU: fp32's answers
                reference = self.store.fetch(self.exported.model, Path(folder) / "fp32")  # are the expected ones
            inputs = {spec.name: self.reference[f"input/{spec.name}"] for spec in visible.inputs}
            golden = _golden(reference / "model.onnx", batch_of(inputs, _GOLDEN_SAMPLES), states)
            signature, golden, inputs = self._named(visible, golden, inputs)
            tree = Path(folder) / "package"
            tree.mkdir()
            description = self._description(candidate, signature, states)
            write_package(tree, description, model, self.target.server, example=inputs, golden=golden)
            return Package(
                target=self.target.name,
                server=self.target.server,
                model=self.version.name,
                version=self.version.version,
                precision=candidate.precision,
                config=self.config,
                repository=self.store.put_tree(tree),
                signature=signature,
                score=candidate.score,
                samples=candidate.samples,
                slices=candidate.slices,
                sequences=bool(states),
                nodes=self.target.nodes,
                needs=server_needs(self.serving, self.target.server),
                **evaluation,
            )

    @property
    def native(self) -> bool:
        """Whether PyTorch itself serves the model."""
        return self.target.engine == "pytorch"

    def _model(self, candidate: Candidate) -> Artifact:
        if not self.native:
            assert candidate.model is not None  # noqa: S101 - candidates that were not built are never kept
            return candidate.model
        if self.exported.torchscript is None:
            raise SpecInvalid(
                f"target {self.target.name} has `engine: pytorch`, but the model was exported only to ONNX",
                do="Set `export.torchscript: true`.",
            )
        return self.exported.torchscript

    def _named(self, signature: Signature, golden: Arrays, inputs: Arrays) -> tuple[Signature, Arrays, Arrays]:
        """The signature, the golden requests and the inputs with the names that clients of the server use."""
        if not self.native:
            return signature, golden, inputs
        renamed, names = positional(signature)
        return (
            renamed,
            {names[name]: array for name, array in golden.items()},
            {names[f"input/{name}"].removeprefix("input/"): array for name, array in inputs.items()},
        )

    def _description(
        self, candidate: Candidate, signature: Signature, states: dict[str, TensorSpec]
    ) -> ModelDescription:
        return ModelDescription(
            name=serving_name(self.version.name),
            version=self.version.version,
            signature=signature,
            states=states,
            config=self.config,
            serving=self.serving,
            gpu=self.target.gpu,
            engine=self.target.engine,
            precision=candidate.precision,
            profiles=self.target.profiles,
        )


def _quality(exported: Exported, candidates: Candidates, quality: Quality, data: Data) -> tuple[Check, ...]:
    checks = [parity_check(exported.parity, quality)]
    best = _best(candidates)
    if not candidates.kept:
        reason = "; ".join(f"{c.precision}: {c.dropped}" for c in candidates.candidates)
        checks.append(
            Check(name="precision", measured=0, limit=1, unit="candidates", verdict=Outcome.FAIL, reason=reason)
        )
    elif score := score_check(best.score, best.samples, candidates.metric, quality, data):
        checks.append(score)
    return tuple(checks)


def _best(candidates: Candidates) -> Candidate:
    """The most accurate candidate: if it does not pass, none does."""
    base = next(c for c in candidates.candidates if c.precision == "fp32")
    return base if base in candidates.kept or not candidates.kept else candidates.kept[0]


def _golden(model: Path, inputs: Arrays, states: dict[str, TensorSpec]) -> Arrays:
    """Golden requests of one sample each, since int8 answers may round differently in a larger batch.

    For a stateful model they are the steps of one sequence.
    """
    return golden_arrays(inputs, answer_sequence(onnx_models.session(model), inputs, states))
