"""Packaging: a Triton model repository per kept precision, with golden requests that prove it wherever it is loaded.

The quality gates are judged here too: what can't pass is not worth measuring, so the release ends with the reason.
"""

from pathlib import Path
from tempfile import TemporaryDirectory

from runtime import onnx_models, policy, tensorrt_plans
from runtime.artifacts import ArtifactStore
from runtime.names import serving_name
from runtime.records import (
    Candidate,
    Candidates,
    Check,
    Exported,
    ModelVersion,
    Outcome,
    Package,
    Packages,
    Precision,
    Site,
)
from runtime.search.space import first_config
from runtime.spec import Data, Quality, SearchSpace, Serving, Target
from runtime.tensors import Arrays, batch_of, load_npz
from runtime.triton.config import ModelDescription, server_needs
from runtime.triton.repository import golden_arrays, write_package

_GOLDEN_SAMPLES = 8
_GPU_ALONE: tuple[Precision, ...] = ("bf16", "fp8")


def package(
    site: Site, target: Target, model_version: ModelVersion, exported: Exported, candidates: Candidates,
    quality: Quality, data: Data, search_space: SearchSpace, serving: Serving,
) -> Packages:  # fmt: skip
    """One package per kept candidate, in the order of the candidates, under the configuration tuning starts from.

    Raises:
        StorageFull: no space is left.
        ArtifactCorrupt: a model is missing or altered.
        QuantizeFailed: a TensorRT plan is not one for this target.
    """
    checks = _quality(exported, candidates, quality, data)
    if any(check.verdict is not Outcome.PASS for check in checks):
        return Packages(target=target.name, packages=(), checks=checks)
    store = ArtifactStore(site.artifacts_uri)
    config = first_config(search_space, serving, target.server)
    arrays = load_npz(store.read(exported.reference))
    inputs = {spec.name: arrays[f"input/{spec.name}"] for spec in exported.signature.inputs}
    packages = []
    for candidate in candidates.kept:
        if candidate.model is None:  # one that was not built is never kept
            continue
        with TemporaryDirectory(prefix="shiplift-package-", dir=site.home) as folder:
            model = store.fetch(candidate.model, Path(folder) / "model")
            description = ModelDescription(
                name=serving_name(model_version.name),
                version=model_version.version,
                signature=exported.signature,
                config=config,
                serving=serving,
                gpu=target.gpu,
                engine=target.engine,
                precision=candidate.precision,
                profiles=target.profiles,
            )
            if stamp := tensorrt_plans.read_stamp(model):
                tensorrt_plans.require_match(stamp, target)
            asked = model
            if candidate.precision in _GPU_ALONE:  # no processor runs it: fp32's answers are what it has to come near
                asked = store.fetch(exported.model, Path(folder) / "fp32")
            golden = _golden(asked / "model.onnx", batch_of(inputs, _GOLDEN_SAMPLES))
            tree = Path(folder) / "package"
            tree.mkdir()
            write_package(tree, description, model, target.server, example=inputs, golden=golden)
            packages.append(
                Package(
                    target=target.name,
                    server=target.server,
                    model=model_version.name,
                    version=model_version.version,
                    precision=candidate.precision,
                    config=config,
                    repository=store.put_tree(tree),
                    signature=exported.signature,
                    score=candidate.score,
                    samples=candidate.samples,
                    metric=candidates.metric,
                    validation=candidates.validation,
                    slices=candidate.slices,
                    nodes=target.nodes,
                    needs=server_needs(serving, target.server),
                )
            )
    return Packages(target=target.name, packages=tuple(packages), checks=checks)


def _quality(exported: Exported, candidates: Candidates, quality: Quality, data: Data) -> tuple[Check, ...]:
    checks = [policy.parity_check(exported.parity, quality)]
    best = _best(candidates)
    if not candidates.kept:
        reason = "; ".join(f"{c.precision}: {c.dropped}" for c in candidates.candidates)
        checks.append(
            Check(name="precision", measured=0, limit=1, unit="candidates", verdict=Outcome.FAIL, reason=reason)
        )
    elif score := policy.score_check(best.score, best.samples, candidates.metric, quality, data):
        checks.append(score)
    return tuple(checks)


def _best(candidates: Candidates) -> Candidate:
    """The most accurate one: if it does not pass, none does."""
    base = next(c for c in candidates.candidates if c.precision == "fp32")
    return base if base in candidates.kept or not candidates.kept else candidates.kept[0]


def _golden(model: Path, inputs: Arrays) -> Arrays:
    """Each sample by itself, as it will be asked: int8 answers may round differently in a larger batch."""
    running = onnx_models.session(model)
    count = len(next(iter(inputs.values())))
    rows = [onnx_models.answer(running, {n: a[at : at + 1] for n, a in inputs.items()}) for at in range(count)]
    return golden_arrays(inputs, onnx_models.stacked(rows))
