"""A package in the making: what all packages say about themselves, in their configuration and their record."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from shiplift.runtime.base.names import serving_name
from shiplift.runtime.families.work import Packaging
from shiplift.runtime.model.tensors import Arrays
from shiplift.runtime.records.precision import Candidate
from shiplift.runtime.records.serving import Padding, ServingConfig
from shiplift.runtime.records.tensor import Signature, TensorSpec
from shiplift.runtime.records.trees import TreesForm
from shiplift.runtime.search import buckets
from shiplift.runtime.serving.triton.config import ModelDescription, server_needs


@dataclass(frozen=True, kw_only=True)
class GoldenAnswers:
    """A candidate's answers to the golden requests, and what is proven about padding if the spec asks for buckets."""

    outputs: Arrays
    padding: Padding | None


@dataclass(frozen=True, kw_only=True)
class Draft:
    """A package in the making: `folder` is scratch space, `tree` becomes the package, `model` is the candidate's.

    `described` goes into its configuration. `inputs` are the example's, `golden` the golden requests.
    """

    folder: Path
    tree: Path
    model: Path
    candidate: Candidate
    described: ModelDescription
    inputs: Arrays
    golden: Arrays
    answered: GoldenAnswers


def described(
    work: Packaging[Any],
    config: ServingConfig,
    candidate: Candidate,
    signature: Signature,
    states: Mapping[str, TensorSpec],
    padding: Padding | None,
    forest: TreesForm | None,
) -> ModelDescription:
    """What goes into a candidate's configuration."""
    target = work.target
    first = buckets.declared(work.serving.lengths) if padding and padding.buckets else ()
    return ModelDescription(
        name=serving_name(work.version.name),
        version=work.version.version,
        signature=signature,
        states=states,
        config=config.model_copy(update={"buckets": first}),
        serving=work.serving,
        padding=padding,
        gpu=target.gpu,
        engine=candidate.engine,
        precision=candidate.precision,
        trees=forest if candidate.engine == "trees" else None,
        profiles=target.profiles,
        tensorrt=target.tensorrt,
        gpus=target.gpus,
        instance_groups=target.instance_groups,
        limits=work.serving.limits.within(work.site.policy.served),
    )


def common_fields(work: Packaging[Any], draft: Draft) -> dict[str, Any]:
    """The fields that every package's record has, except for its files."""
    candidate, candidates = draft.candidate, work.candidates
    return {
        "target": work.target.name,
        "server": work.target.server,
        "model": work.version.name,
        "version": work.version.version,
        "engine": candidate.engine,
        "precision": candidate.precision,
        "config": draft.described.config,
        "signature": draft.described.signature,
        "score": candidate.score,
        "resamples": candidate.resamples,
        "samples": candidate.samples,
        "slices": candidate.slices,
        "metric": candidates.metric,
        "constant_score": candidates.constant_score,
        "validation": candidates.validation,
        "padding": draft.answered.padding,
        "scoring": work.exported.scoring,
        "nodes": work.target.nodes,
        "limits": draft.described.limits,
        "needs": server_needs(work.serving, work.target.server),
    }
