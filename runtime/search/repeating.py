"""Asks rows of a release's proof again: a version's original, and a form of it on a server that nobody else uses."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from shiplift.runtime.base.errors import NotFound, Temporary
from shiplift.runtime.confinement.policy import SandboxLimits
from shiplift.runtime.host.folders import scratch_folder
from shiplift.runtime.model.tensors import load_npz, text_of
from shiplift.runtime.proof.answers import Answers
from shiplift.runtime.proof.questions.question import Questions
from shiplift.runtime.proof.served import Form
from shiplift.runtime.proof.settings import Busy, rows_of
from shiplift.runtime.records.asked import AskedAgain, RowAsked
from shiplift.runtime.records.kinds.exported import Exported
from shiplift.runtime.records.kinds.package import Package
from shiplift.runtime.records.serving import ServingConfig
from shiplift.runtime.records.site import Site
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
    version, conversion = admitted.model_version, admitted.conversion
    name = f"{version.name}/{version.version}"
    if package.questions is None:
        raise NotFound(f"no rows were kept that the server of {name} was asked", do=f"Run `shiplift rerun {name}`.")
    store, policy = ArtifactStore(site.artifacts_uri), site.policy
    asked, recorded = found_rows(load_npz(store.read(package.questions)), rows)
    limits = SandboxLimits(
        memory_mb=min(conversion.memory_mb, policy.memory_mb),
        timeout_s=min(conversion.timeout_s, policy.timeout_s),
        task="asking the model again",
        settings="export",
    )
    original, judge = ask_original(site, version.files, exported, admitted.contract.signature, asked.inputs, limits)
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


def _served(
    site: Site, package: Package, serving: Serving, asked: Questions, recorded: Answers, clients: int
) -> list[Again]:
    """What the package answers on a private server, which takes as many rows in a request as there are."""
    count = len(asked.origins)
    batched = package.signature.batch != 1
    config = _config(package.config, count) if batched else package.config
    with (
        scratch_folder(Path(site.home)) as work,
        start_bench(site, (package,), serving, work) as bench,
    ):
        model = bench.serve(Point(package, config))
        with TritonClient(bench.address("grpc")) as client:
            asking, form = Asking(client, model, package), Form(lossy=tolerance_of(package))
            try:
                return list(ask_form(asking, asked, recorded, form, clients, count if batched else 1))
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
