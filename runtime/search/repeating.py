"""Asks rows of a release's proof again: a version's original, and a form of it on a server that nobody else uses."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shiplift.runtime.base.errors import NotFound, Temporary, UsageError
from shiplift.runtime.confinement.policy import SandboxLimits
from shiplift.runtime.host.folders import scratch_folder
from shiplift.runtime.model.python.resolving import resolve
from shiplift.runtime.model.tensors import Arrays, as_input, fits, load_npz, numpy_type, text_of
from shiplift.runtime.proof.answers import Answers
from shiplift.runtime.proof.comparison import compare
from shiplift.runtime.proof.questions.question import Questions
from shiplift.runtime.proof.served import JudgedForm
from shiplift.runtime.proof.settings import Busy, alone, rows_of
from shiplift.runtime.records.asked import AskedAgain, RowAsked
from shiplift.runtime.records.kinds.contract import DeclaredGeneration, DeclaredPipeline, DeclaredPython
from shiplift.runtime.records.kinds.exported import Exported
from shiplift.runtime.records.kinds.package import Package
from shiplift.runtime.records.model import PythonModel
from shiplift.runtime.records.serving import ServingConfig
from shiplift.runtime.records.site import Site
from shiplift.runtime.records.tensor import Signature, TensorSpec
from shiplift.runtime.search.asking_again import Again, ask_form, found_rows
from shiplift.runtime.search.bench import start_bench
from shiplift.runtime.search.original import ask_original
from shiplift.runtime.search.served_proof import Asking, body_of, tolerance_of
from shiplift.runtime.search.space import Point
from shiplift.runtime.serving.triton.client import TritonClient
from shiplift.runtime.spec.admitted import Admitted
from shiplift.runtime.spec.serving_settings import Serving
from shiplift.runtime.store.artifacts import ArtifactStore

_SHOWN = 400  # characters of an answer


def ask(
    site: Site, admitted: Admitted, exported: Exported, package: Package, rows: Sequence[int], clients: int
) -> AskedAgain:
    """Asks these rows of a package's questions: the original each alone, and the form also among each other.

    With several `clients`, the form is asked by all of them at once.

    Raises:
        UsageError: there is no such row.
        NotFound: the package has no questions.
        ArtifactCorrupt: the rows, the model or the package are no longer stored.
        MissingTool, ServerFailed: the package can't be served here.
        Temporary: the server does not answer.
    """
    version = admitted.model_version
    name = f"{version.name}/{version.version}"
    if package.questions is None:
        raise NotFound(f"no rows were kept that the server of {name} was asked", do=f"Run `shiplift rerun {name}`.")
    store = ArtifactStore(site.artifacts_uri)
    asked, recorded = found_rows(load_npz(store.read(package.questions)), rows)
    original, judge = _original(site, admitted, exported, asked.inputs)
    served = _served(site, package, admitted.serving, asked, recorded, clients)
    return AskedAgain(
        model=version.name,
        version=version.version,
        form=package.described,
        judge=judge,
        rows=tuple(
            RowAsked(
                row=row,
                origin=asked.origins[at],
                inputs=_short(body_of(package, rows_of(asked.inputs, [at]))),
                recorded=_told(recorded.take([at])),
                original=_told(original.take([at])) if original else "",
                served=_told(each.alone),
                among=_told(each.among) if each.among else "",
                difference=each.difference,
            )
            for at, (row, each) in enumerate(zip(rows, served, strict=True))
        ),
    )


def ask_model(site: Site, admitted: Admitted, exported: Exported | None, given: Mapping[str, Any]) -> AskedAgain:
    """Asks the original one row twice, each time alone. `given` has a value for each input, as errors show a row.

    Raises:
        UsageError: an input is missing, or its value does not fit.
        ArtifactCorrupt: the model is no longer stored.
        NotAdmitted, PolicyRefused, Temporary: the environment of a Python model can't be made.
    """
    version, signature = admitted.model_version, admitted.contract.signature
    row = row_of(given, signature)
    twice = {name: np.concatenate([array, array]) for name, array in row.items()}
    answers, judge = _original(site, admitted, exported, twice)
    told = [_told(answers.take([at])) for at in range(2)] if answers else ["", ""]
    found = compare(answers.take([0]), answers.take([1]), ("given",), setting="asked again").first if answers else None
    asked = RowAsked(
        row=0,
        origin="given",
        inputs=_short(json.dumps(given, ensure_ascii=False)),
        recorded="",
        original=told[0],
        served="",
        among="",
        difference=f"the original is not repeatable: {found}" if found else "",
    )
    return AskedAgain(model=version.name, version=version.version, form="", judge=judge, rows=(asked,))


def ask_given(
    site: Site, admitted: Admitted, exported: Exported, package: Package, given: Mapping[str, Any], clients: int
) -> AskedAgain:
    """Asks the original and a package one row that somebody gives, as in `ask_model`.

    Their answers are compared if they have the same outputs.

    Raises:
        UsageError: an input is missing, or its value does not fit.
        ArtifactCorrupt: the model or the package are no longer stored.
        MissingTool, ServerFailed: the package can't be served here.
        Temporary: the server does not answer.
    """
    version = admitted.model_version
    asked = Questions(inputs=row_of(given, package.signature), origins=("given",))
    original, judge = _original(site, admitted, exported, asked.inputs)
    names = {spec.name for spec in package.signature.outputs}
    right = original if original and set(original.outputs) == names else None
    (found,) = _served(site, package, admitted.serving, asked, right, clients)
    row = RowAsked(
        row=0,
        origin="given",
        inputs=_short(json.dumps(given, ensure_ascii=False)),
        recorded="",
        original=_told(original) if original else "",
        served=_told(found.alone),
        among=_told(found.among) if found.among else "",
        difference=found.difference,
    )
    return AskedAgain(
        model=version.name,
        version=version.version,
        form=package.described,
        judge=judge,
        compared=right is not None,
        rows=(row,),
    )


def row_of(given: Mapping[str, Any], signature: Signature) -> Arrays:
    """One row as tensors, from a value for each input by name: a number or a text, or nested lists of these.

    Raises:
        UsageError: an input is missing or unknown, or its value does not fit.
    """
    known = {spec.name: spec for spec in signature.inputs}
    missing = [name for name, spec in known.items() if name not in given and not spec.optional]
    if unknown := [name for name in given if name not in known]:
        raise UsageError(f"the model has no input {unknown[0]!r}", do=f"Its inputs are {', '.join(known)}.")
    if missing:
        raise UsageError(f"there is no value for the input {missing[0]!r}", do="Give one for each input.")
    return {name: _one(value, known[name]) for name, value in given.items()}


def _one(value: Any, spec: TensorSpec) -> NDArray[Any]:
    kind = object if spec.datatype == "BYTES" else numpy_type(spec.datatype)
    try:
        array = as_input(np.array(value, dtype=kind), spec)
    except (TypeError, ValueError, OverflowError) as error:
        raise UsageError(
            f"the value of {spec.name!r} is not of type {spec.datatype}: {error}",
            do="Write it as the release showed it.",
        ) from error
    array = array.reshape((1,) * (len(spec.shape) - array.ndim) + array.shape)
    if not fits(array, spec):
        raise UsageError(
            f"the value of {spec.name!r} has the shape {list(array.shape)}, the model takes {list(spec.shape)}",
            do="Give one row of it.",
        )
    return array


def _original(site: Site, admitted: Admitted, exported: Exported | None, rows: Arrays) -> tuple[Answers | None, str]:
    """What the original answers, and who says so; with an export as it runs there, else as it was logged."""
    contract, conversion, policy = admitted.contract, admitted.conversion, site.policy
    if isinstance(contract, DeclaredGeneration | DeclaredPipeline):
        return None, f"nobody: mlflow.pyfunc does not judge a model of the kind {contract.kind!r}"
    limits = SandboxLimits(
        memory_mb=min(conversion.memory_mb, policy.memory_mb),
        timeout_s=min(conversion.timeout_s, policy.timeout_s),
        task="asking the model again",
        settings="export",
    )
    python = exported.python_model if exported else None
    if exported is None and isinstance(contract, DeclaredPython):
        python = PythonModel(environment=resolve(site, contract.requirements), memory_mb=limits.memory_mb)
    return ask_original(site, admitted.model_version.files, python, contract.signature, rows, limits)


def _served(
    site: Site, package: Package, serving: Serving, asked: Questions, recorded: Answers | None, clients: int
) -> list[Again]:
    """What the package answers on a private server, which takes as many rows in a request as there are.

    Without `recorded` answers, those to each row alone are what the others are compared with.
    """
    count = len(asked.origins)
    batched = package.signature.batch != 1
    config = _config(package.config, count) if batched else package.config
    with (
        scratch_folder(Path(site.home)) as work,
        start_bench(site, (package,), serving, work) as bench,
    ):
        model = bench.serve(Point(package, config))
        with TritonClient(bench.address("grpc")) as client:
            asking, form = Asking(client, model, package), JudgedForm(lossy=tolerance_of(package))
            try:
                right = recorded or alone(asking, asked.inputs)
                return list(ask_form(asking, asked, right, form, clients, count if batched else 1))
            except Busy as error:
                raise Temporary(f"the server takes no requests: {error}", do="Ask again.") from error


def _config(config: ServingConfig, count: int) -> ServingConfig:
    return config.model_copy(update={"max_batch": max(config.max_batch, count)})


def _told(answers: Answers) -> str:
    """A row's answer, shortened."""
    if error := answers.errors[0]:
        return _short(f"raises {error}")
    return _short(json.dumps({name: _plain(array[0]) for name, array in answers.outputs.items()}, ensure_ascii=False))


def _plain(array: Any) -> Any:
    """Numbers, or texts that a server gives as bytes."""
    values = np.asarray(array)
    if values.dtype.kind not in "OS":
        return values.tolist()
    return np.array([text_of(item, errors="replace") for item in values.ravel()], object).reshape(values.shape).tolist()


def _short(text: str) -> str:
    return text if len(text) <= _SHOWN else f"{text[: _SHOWN - 3]}..."
