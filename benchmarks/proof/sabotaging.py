"""Sabotages a right export in its files, one way after the other, and asks the half that proves about each."""

import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from benchmarks.proof.asking import mixed
from benchmarks.proof.exporting import Proving
from benchmarks.proof.results import Sabotage
from benchmarks.proof.sabotages.mutation import Files, Mutation
from benchmarks.proof.sabotages.table import mutations_of
from benchmarks.proof.serving_forms import written_ask
from shiplift.runtime.gates.quality import parity_check
from shiplift.runtime.model.tensors import Arrays
from shiplift.runtime.proof.comparison import compare
from shiplift.runtime.records.kinds.exported import Exported
from shiplift.runtime.records.model import ParityCase
from shiplift.runtime.records.verdict import Outcome
from shiplift.runtime.spec.model import Quality

_SHOWN = 400
_SERVED = ("form", "served", "trees", "signature", "notes")  # of a proof's result: how the version is served


def sabotaged(model: str, version: Exported, proof: Proving, folder: Path, fresh: Arrays) -> Iterator[Sabotage]:
    """Each mutation that fits the export, and whether its proof catches it.

    One that is not, and changes no answer to `fresh` rows either, is none, unless it is subtle.
    """
    right = proof.again(_copied(proof.folder, folder))
    for mutation in mutations_of(version):
        what = mutation.apply(_files(_copied(proof.folder, folder), proof, right))
        if what is None:
            continue
        by = _caught(proof, folder, right)
        if by or mutation.subtle or _shows(proof, folder, version, right, mutation, fresh):
            name = f"{model}/{mutation.name}"
            yield Sabotage(name=name, model=model, depth="exported", caught=bool(by), what=what, by=by)


def _copied(folder: Path, to: Path) -> Path:
    shutil.rmtree(to, ignore_errors=True)
    shutil.copytree(folder, to)
    return to


def _files(folder: Path, proof: Proving, right: Mapping[str, Any]) -> Files:
    """The files in a copy of the proof's folder; a proof of Python has no graph."""
    graphs = proof.arguments.get("graphs")
    if not graphs:
        return Files(folder=folder, graph=folder)
    served = graphs[right["served"]]["folder"]
    return Files(folder=folder, graph=folder / "written" / served / "model.onnx")


def _caught(proof: Proving, folder: Path, right: Mapping[str, Any]) -> str:
    """By what message the proof caught a sabotage; empty if it did not."""
    try:
        result = proof.again(folder)
    except Exception as error:  # any end but an answer keeps the version from being served
        return _short(f"{type(error).__name__}: {error}")
    for field in _SERVED:
        if result.get(field) != right.get(field):
            return _short(f"{field} is now {result[field]}; {result.get('dropped') or result.get('trees') or ''}")
    parity = tuple(ParityCase.model_validate(case) for case in result["parity"])
    check = parity_check(parity, Quality())
    return _short(check.reason) if check and check.verdict == Outcome.FAIL else ""


def _shows(
    proof: Proving, folder: Path, version: Exported, right: Mapping[str, Any], mutation: Mutation, fresh: Arrays
) -> bool:
    """Whether fresh rows are answered differently, in batches as they come."""
    before, after = (
        mixed(written_ask(_files(each, proof, right), version, trees=mutation.of == "trees"), fresh, 0)
        for each in (proof.folder, folder)
    )
    return not compare(before, after, ["fresh"] * len(before.errors)).same


def _short(message: str) -> str:
    return " ".join(message.split())[:_SHOWN]
