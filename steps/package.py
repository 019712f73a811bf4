"""Packaging: a Triton model repository per kept precision, with golden requests that verify it wherever it is loaded.

The quality gates are judged here too, against the limit and the champion's score: a precision that can't pass is not
packaged, and a model of which none can ends its release before it is measured. What an engine answers to the golden
requests is found out in a sandbox, since a model may answer never.
"""

import math
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from shiplift.runtime.base.errors import SpecInvalid
from shiplift.runtime.base.names import TENSORS, name_endings, serving_name
from shiplift.runtime.composition.incumbents import Members
from shiplift.runtime.confinement.policy import EVALUATE, Entry, SandboxLimits
from shiplift.runtime.confinement.workplace import Workplace, workplace
from shiplift.runtime.gates.quality import jpeg_checks, jpeg_notes, parity_check, regression_check, score_check, scored
from shiplift.runtime.host.folders import scratch_folder
from shiplift.runtime.host.outputs import require_regular
from shiplift.runtime.model import golden as golden_requests
from shiplift.runtime.model.generation.signature import ROOM
from shiplift.runtime.model.python.layers import name_of
from shiplift.runtime.model.sequences import hide_states
from shiplift.runtime.model.tensors import GRAPH, Arrays, batch_of, inputs_in, load_npz, under
from shiplift.runtime.precision import tensorrt_plans
from shiplift.runtime.precision.limits import limits_of
from shiplift.runtime.records.artifact import Artifact
from shiplift.runtime.records.model import Datasets, Exported, ModelVersion
from shiplift.runtime.records.precision import Candidate, Candidates, Engine, Precision, scale_of
from shiplift.runtime.records.serving import Champion, Package, Padding, ServingConfig
from shiplift.runtime.records.site import Site
from shiplift.runtime.records.tensor import Signature, TensorSpec
from shiplift.runtime.records.verdict import Check, Outcome, Packages, Scored
from shiplift.runtime.search import buckets
from shiplift.runtime.search.space import first_config
from shiplift.runtime.serving.bundles.composing import compose, described
from shiplift.runtime.serving.bundles.scoring import Scoring
from shiplift.runtime.serving.packaging.earlier_versions import Incumbent, Successor, add_earlier
from shiplift.runtime.serving.packaging.generation_backend import write_generation_backend
from shiplift.runtime.serving.packaging.python_backend import write_python_backend
from shiplift.runtime.serving.packaging.text_backend import write_text_backend
from shiplift.runtime.serving.triton.config import ModelDescription, positional, server_needs
from shiplift.runtime.serving.triton.repository import golden_arrays, write_model, write_package
from shiplift.runtime.spec.measurement import ScoreTarget, SearchSpace
from shiplift.runtime.spec.model import Data, Quality, Quantization
from shiplift.runtime.spec.serving_settings import Serving
from shiplift.runtime.spec.target import Target
from shiplift.runtime.store.artifacts import ArtifactStore

ANSWER = Entry("shiplift.runtime.model.golden:answer_golden", EVALUATE)
_GPU_ONLY: tuple[Precision, ...] = ("bf16", "fp8")


def package(
    site: Site, target: Target, model_version: ModelVersion, exported: Exported, candidates: Candidates,
    datasets: Datasets, quality: Quality, data: Data, search_space: SearchSpace, serving: Serving,
    quantization: Quantization, champion: Champion, members: Members, score_target: ScoreTarget,
) -> Packages:  # fmt: skip
    """One package per kept candidate that can pass, in their order, with the configuration that tuning starts from.

    Raises:
        StorageFull: no space is left.
        ArtifactCorrupt: a model is missing or altered.
        QuantizeFailed: a TensorRT plan is for another target.
        SandboxLimit: answering the golden requests takes more memory or time than the spec allows.
        MissingTool: the model takes text, and the library that tokenizes it or generates is not installed here.
        SpecInvalid: the target needs TorchScript, which was not exported; or the spec's states or lengths are not the
            model's; or a pipeline's members do not fit it, or can't be members.
        ServerFailed: a pipeline's bundle can't be loaded, or does not answer.
    """
    before = scored(champion.package) if champion.package else None
    if exported.composes:
        limits = limits_of(quantization, "scoring the pipeline", site.policy)
        scoring = Scoring(site=site, signature=exported.signature, datasets=datasets, data=data, limits=limits)
        with scratch_folder(Path(site.home)) as folder:
            bundle, checked = compose(site, target, model_version, exported, members, scoring, folder)
        whole = scored(bundle)
        found = (score_check(whole, quality, data), regression_check(before, whole, score_target.worse, quality))
        return _judged(bundle, tuple(filter(None, found)), described(checked))
    judge = _Judge(
        version=model_version.version, target=target.name, candidates=candidates, quality=quality, data=data,
        champion=before, worse=score_target.worse,
    )  # fmt: skip
    checks = judge.verdict(exported)
    if any(check.verdict is not Outcome.PASS for check in checks):
        return Packages(target=target.name, packages=(), checks=checks)
    if serving.lengths:
        buckets.check_pad(serving.lengths, exported.signature, text=exported.text is not None)
    store = ArtifactStore(site.artifacts_uri)
    builder = _Builder(
        site=site, store=store, target=target, version=model_version, exported=exported, serving=serving,
        config=first_config(
            search_space, serving, target.server, exported.signature, "python" if exported.python else "onnxruntime"
        ),
        reference=load_npz(store.read(exported.text.reference if exported.text else exported.reference)),
    )  # fmt: skip
    evaluation = {"metric": candidates.metric, "validation": candidates.validation, "jpegs": candidates.jpegs}
    built = [
        candidate
        for candidate in _servable(candidates.kept, target, serving, text=exported.text is not None)
        if candidate.model is not None and judge.passes(candidate)
    ]
    with workplace(ANSWER, Path(site.home), site.sandbox) as place:
        answered = builder.answers(place, built, limits_of(quantization, "answering the golden requests", site.policy))
        incumbent = _incumbent(store, champion, serving, place.folder / "champion")
        packages = tuple(
            builder.build(place.folder / f"package-{index}", candidate, answered[index], evaluation, incumbent)
            for index, candidate in enumerate(built)
        )
    notes = (*judge.notes(), *jpeg_notes(candidates.jpegs), *_refusals(packages))
    return Packages(target=target.name, packages=packages, checks=checks, notes=notes)


def _judged(bundle: Package, checks: tuple[Check, ...], notes: tuple[str, ...]) -> Packages:
    """A pipeline's bundle, unless its score does not let it pass."""
    passes = all(check.verdict is Outcome.PASS for check in checks)
    return Packages(target=bundle.target, packages=(bundle,) if passes else (), checks=checks, notes=notes)


def _incumbent(store: ArtifactStore, champion: Champion, serving: Serving, to: Path) -> Incumbent | None:
    """The champion's package, fetched into a folder, if earlier versions are to be served beside the new one.

    It is the version's own if that is the champion: then the same are served again.
    """
    before = champion.own or champion.package
    if before is None or not serving.keeps_versions:
        return None
    return Incumbent(package=before, tree=store.fetch(before.repository, to))


def _refusals(packages: Sequence[Package]) -> Iterator[str]:
    """Why packages are served without what the spec asks for; engines often share a reason."""
    refused: dict[tuple[str, str], list[str]] = {}
    for built in packages:
        if built.padding and built.padding.refused and not built.padding.buckets:
            refused.setdefault(("no buckets of lengths for ", built.padding.refused), []).append(built.described)
        if built.earlier.refused:
            refused.setdefault(("", built.earlier.refused), []).append(built.described)
    for (what, reason), names in refused.items():
        yield f"{what}{', '.join(names)}: {reason}"


def _servable(kept: Sequence[Candidate], target: Target, serving: Serving, *, text: bool) -> list[Candidate]:
    """The candidates whose engine has a backend for the model."""
    if text and serving.sequence_batching:
        raise SpecInvalid(
            "the model takes text, and has no states", do="Leave `serving.sequence_batching` out of the spec."
        )
    if text and (target.gpu or target.server != "bundled"):
        raise SpecInvalid(
            f"target {target.name} can't serve a model that takes text: only the bundled server on a CPU can",
            do="Choose such a target, or log the model itself as pt2 or ONNX: clients then send tokens.",
        )
    if serving.tensors and not text:
        raise SpecInvalid(
            "`serving.tensors` is for models that take text or images; this one takes tensors already",
            do="Leave `serving.tensors` out of the spec.",
        )
    stateless = [candidate for candidate in kept if candidate.engine != "openvino"]
    if serving.sequence_batching and kept and not stateless:
        raise SpecInvalid(
            f"target {target.name} has `engine: openvino`, which serves no models with states",
            do="Set `engine: onnxruntime`, or leave `serving.sequence_batching` out.",
        )
    return stateless if serving.sequence_batching else list(kept)


@dataclass(frozen=True, kw_only=True)
class _Answered:
    """A candidate's answers to the golden requests, and what is proven about padding if the spec asks for buckets."""

    outputs: Arrays
    padding: Padding | None


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

    def answers(self, place: Workplace, candidates: Sequence[Candidate], limits: SandboxLimits) -> list[_Answered]:
        """Each candidate's answers to the golden requests, from the sandbox, unless they are recorded already."""
        if self.exported.python or self.exported.generates:
            outputs = {spec.name: self.reference[f"output/{spec.name}"] for spec in self.exported.signature.outputs}
            recorded = batch_of(outputs, golden_requests.SAMPLES)
            return [_Answered(outputs=recorded, padding=self._refusal(candidate)) for candidate in candidates]
        visible, states = self._visible()
        asked = [self._asked(candidate) for candidate in candidates]
        text = self.exported.text
        reference = text.reference if text else self.exported.reference
        files = {model.sha256: model for model, *_ in asked}
        folders = {digest: self.store.fetch(model, place.folder / digest) for digest, model in files.items()}
        index = {key: number for number, key in enumerate(dict.fromkeys((m.sha256, *engine) for m, *engine in asked))}
        result, _ = place.sandbox.run(
            {
                "models": [
                    {"file": str(folders[digest] / "model.onnx"), "engine": engine, "precision": precision}
                    for digest, engine, precision in index
                ],
                "reference": str(self.store.fetch(reference, place.folder / "reference.npz")),
                "inputs": [spec.name for spec in visible.inputs],
                "outputs": [spec.name for spec in self.exported.signature.outputs],
                "states": {name: output.model_dump(mode="json") for name, output in states.items()},
                "text": {
                    "front": str(self.store.fetch(text.files, place.folder / "text")), "tensors": self.serving.tensors
                } if text else None,
                "lengths": self._lengths(candidates, [index[m.sha256, *engine] for m, *engine in asked]),
                "out": str(place.sandbox.work),
            },
            limits,
        )  # fmt: skip
        require_regular(place.sandbox.work)
        numbers = [index[m.sha256, *engine] for m, *engine in asked]
        return [
            _Answered(
                outputs=load_npz(place.sandbox.work / f"{number}.npz"),
                padding=self._refusal(candidate) or self._proven(result["padding"].get(str(number))),
            )
            for candidate, number in zip(candidates, numbers, strict=True)
        ]

    def _lengths(self, candidates: Sequence[Candidate], numbers: Sequence[int]) -> dict[str, Any] | None:
        """What the sandbox is to prove about padding, for the models of these numbers; None: nothing."""
        lengths = self.serving.lengths
        if lengths is None:
            return None
        return {
            "pad": lengths.pad,
            "buckets": buckets.to_prove(lengths),
            "every": lengths.buckets != "auto",
            "tolerances": {
                str(number): buckets.TOLERANCE[candidate.precision]
                for candidate, number in zip(candidates, numbers, strict=True)
                if not self._refusal(candidate)
            },
        }

    def _refusal(self, candidate: Candidate) -> Padding | None:
        """Why a candidate can't pad requests, whatever a proof would say; None: it may."""
        lengths = self.serving.lengths
        if lengths is None:
            return None
        if self.serving.sequence_batching:
            problem = "the requests of a sequence are not padded"
        elif self.exported.generates:
            problem = "a model that generates text takes prompts of any length together already"
        else:
            text = self.exported.text is not None
            problem = buckets.problem(lengths, self.exported.signature, candidate.engine, self.target, text=text)
        return Padding(pad=lengths.pad, refused=problem) if problem else None

    def _proven(self, proof: dict[str, Any] | None) -> Padding | None:
        if self.serving.lengths is None:
            return None
        return (
            Padding.model_validate(proof) if proof else Padding(refused="the model takes images, which have no lengths")
        )

    def _asked(self, candidate: Candidate) -> tuple[Artifact, Engine, Precision]:
        """The model whose answers are the expected ones: fp32's, if nothing here runs the candidate on a CPU."""
        if candidate.engine == "openvino":
            return self._model(candidate), "openvino", candidate.precision
        if candidate.precision in _GPU_ONLY or self.native:
            return self.exported.model, "onnxruntime", "fp32"
        return self._model(candidate), "onnxruntime", "fp32"

    def build(
        self, folder: Path, candidate: Candidate, answered: _Answered, evaluation: dict[str, Any],
        incumbent: Incumbent | None,
    ) -> Package:  # fmt: skip
        """The package of one candidate, made in `folder`, with golden requests that its engine answered."""
        visible, states = self._visible()
        text, python = self.exported.text, self.exported.python
        model = self.store.fetch(self._model(candidate), folder / "model")
        if stamp := tensorrt_plans.read_stamp(model):
            tensorrt_plans.require_match(stamp, self.target)
        answers = answered.outputs
        inputs = inputs_in(self.reference, visible)
        graph = {name: answers[name] for name in answers if self.serving.tensors and name.startswith(GRAPH)}
        seen = {name: answers[name] for name in answers if name not in graph}
        golden = golden_arrays(batch_of(inputs, golden_requests.SAMPLES), seen)
        if ROOM in self.reference:
            golden[ROOM] = batch_of({ROOM: self.reference[ROOM]}, golden_requests.SAMPLES)[ROOM]
        signature, golden, inputs = self._named(visible, golden, inputs)
        tree = folder / "package"
        tree.mkdir()
        description = self._description(candidate, signature, states, answered.padding)
        backend = None
        if text:
            backend = write_text_backend(folder / "backend", self.store.fetch(text.files, folder / "text"))
        elif python:
            backend = write_python_backend(folder / "backend", model, python, signature)
        elif self.exported.generates:
            logged = self.store.fetch(self.version.files, folder / "logged") if self.target.writes else None
            backend = write_generation_backend(folder / "backend", model, candidate.engine, logged)
        write_package(
            tree, description, None if python or self.target.writes else model, self.target.server, example=inputs,
            golden=golden | graph, backend=backend,
        )  # fmt: skip
        if python and python.layer:
            self.store.fetch(python.layer, tree / name_of(python.environment.digest))
        if self.serving.tensors:
            self._write_graph(tree, description, model, under(GRAPH, graph))
        successor = Successor(
            tree=tree,
            version=self.version.version,
            target=self.target,
            environment=python.environment if python else None,
            endings=name_endings(tensors=self.serving.tensors),
        )
        earlier = add_earlier(successor, incumbent, self.serving.version_policy)
        package = Package(
            target=self.target.name,
            server=self.target.server,
            model=self.version.name,
            version=self.version.version,
            engine=candidate.engine,
            precision=candidate.precision,
            config=description.config,
            repository=self.store.put_tree(tree),
            signature=signature,
            score=candidate.score,
            resamples=candidate.resamples,
            samples=candidate.samples,
            slices=candidate.slices,
            sequences=bool(states),
            padding=answered.padding,
            environment=successor.environment,
            tensors=self.exported.signature if self.serving.tensors else None,
            earlier=earlier,
            nodes=self.target.nodes,
            needs=server_needs(self.serving, self.target.server),
            **evaluation,
        )
        shutil.rmtree(folder)
        return package

    def _write_graph(self, tree: Path, text: ModelDescription, model: Path, golden: Arrays) -> None:
        """Writes the graph behind a model of texts as a model of its own: it takes what is made of the texts."""
        graph = replace(
            text, name=text.name + TENSORS, signature=self.exported.signature, padding=None,
            serving=text.serving.model_copy(update={"labels": ()}),
        )  # fmt: skip
        write_model(tree, graph, model, self.target.server, example=under("input/", golden))

    def _visible(self) -> tuple[Signature, dict[str, TensorSpec]]:
        """The signature that clients see, and the states that they don't."""
        if self.exported.text:
            return self.exported.text.signature, {}
        return hide_states(self.exported.signature, self.serving.sequence_batching)

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
        self, candidate: Candidate, signature: Signature, states: dict[str, TensorSpec], padding: Padding | None
    ) -> ModelDescription:
        first = buckets.declared(self.serving.lengths) if padding and padding.buckets else ()
        return ModelDescription(
            name=serving_name(self.version.name),
            version=self.version.version,
            signature=signature,
            states=states,
            config=self.config.model_copy(update={"buckets": first}),
            serving=self.serving,
            padding=padding,
            gpu=self.target.gpu,
            engine=candidate.engine,
            precision=candidate.precision,
            profiles=self.target.profiles,
            tensorrt=self.target.tensorrt,
            gpus=self.target.gpus,
            instance_groups=self.target.instance_groups,
        )


@dataclass(frozen=True, kw_only=True)
class _Judge:
    """Judges precisions by their scores; `champion` is None if there is none to compare with."""

    version: int
    target: str
    candidates: Candidates
    quality: Quality
    data: Data
    champion: Scored | None
    worse: float

    def verdict(self, exported: Exported) -> tuple[Check, ...]:
        """The checks of the most accurate candidate: if it does not pass, none does."""
        parity = tuple(filter(None, (parity_check(exported.parity, self.quality),)))
        if self.candidates.kept:
            return (*parity, *self.checks(self._best()))
        reason = "; ".join(f"{c.described}: {c.dropped}" for c in self.candidates.candidates)
        none_kept = Check(
            name="precision", measured=0, limit=1, unit="candidates", verdict=Outcome.FAIL, reason=reason
        )  # fmt: skip
        return (*parity, none_kept)

    def checks(self, candidate: Candidate) -> tuple[Check, ...]:
        """A candidate's score against its limit and against the champion's."""
        scores = Scored(
            version=self.version, target=self.target, score=candidate.score, resamples=candidate.resamples,
            samples=candidate.samples, metric=self.candidates.metric, validation=self.candidates.validation,
            jpegs=self.candidates.jpegs,
        )  # fmt: skip
        absolute = score_check(scores, self.quality, self.data)
        regression = regression_check(self.champion, scores, self.worse, self.quality)
        return tuple(filter(None, (absolute, *jpeg_checks(scores, self.quality), regression)))

    def passes(self, candidate: Candidate) -> bool:
        """Whether a candidate's score lets it be promoted."""
        return all(check.verdict is Outcome.PASS for check in self.checks(candidate))

    def notes(self) -> Iterator[str]:
        """Why kept candidates are not packaged."""
        for candidate in self.candidates.kept:
            reasons = [check.reason for check in self.checks(candidate) if check.verdict is not Outcome.PASS]
            if reasons:
                yield f"{candidate.described} can't pass: {'; '.join(reasons)}"

    def _best(self) -> Candidate:
        sign = scale_of(self.candidates.metric).better if self.candidates.metric else 1

        def goodness(candidate: Candidate) -> float:
            score = candidate.score
            return -math.inf if score is None or math.isnan(score) else score * sign

        return max(self.candidates.kept, key=goodness)
