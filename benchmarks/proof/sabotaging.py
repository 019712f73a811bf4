"""Sabotages a right export in its files, one way after the other, and asks the half that proves about each."""

import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path

from benchmarks.proof.asking import mixed
from benchmarks.proof.exporting import Proving
from benchmarks.proof.results import Sabotage
from benchmarks.proof.sabotages.table import Mutation, mutations_of
from benchmarks.proof.serving_forms import written_ask
from shiplift.runtime.gates.quality import parity_check
from shiplift.runtime.model.tensors import Arrays
from shiplift.runtime.proof.comparison import compare
from shiplift.runtime.records.kinds.exported import Exported
from shiplift.runtime.records.model import ParityCase
from shiplift.runtime.records.verdict import Outcome
from shiplift.runtime.spec.model import Quality

_SHOWN = 400


def sabotaged(
    model: str, version: Exported, proving: Mapping[str, Proving], folder: Path, fresh: Arrays
) -> Iterator[Sabotage]:
    """Each mutation that fits the export, and whether it was caught.

    One that is not, and changes no answer to `fresh` rows either, is none, unless it is subtle.
    """
    for proof in proving.values():
        for mutation in mutations_of(version):
            shutil.rmtree(folder, ignore_errors=True)
            shutil.copytree(proof.folder, folder)
            what = mutation.apply(folder)
            if what is None:
                continue
            by = _caught(proof, mutation, folder)
            if not by and not mutation.subtle and not _shows(proof.folder, folder, version, mutation, fresh):
                continue
            yield Sabotage(
                name=f"{model}/{mutation.name}", model=model, depth="exported", caught=bool(by), what=what, by=by
            )


def _caught(proof: Proving, mutation: Mutation, folder: Path) -> str:
    """By what message the proof caught a sabotage; empty if it did not."""
    try:
        result = proof.again(folder)
    except Exception as error:  # any end but an answer keeps the version from being served
        return _short(f"{type(error).__name__}: {error}")
    if dropped := result.get(mutation.dropped):
        return _short(str(dropped))
    parity = tuple(ParityCase.model_validate(case) for case in result["parity"])
    check = parity_check(parity, Quality())
    return _short(check.reason) if check and check.verdict == Outcome.FAIL else ""


def _shows(right: Path, wrong: Path, version: Exported, mutation: Mutation, fresh: Arrays) -> bool:
    """Whether fresh rows are answered differently, in batches as they come."""
    trees = mutation.dropped == "trees"
    before, after = (mixed(written_ask(each, version, trees=trees), fresh, 0) for each in (right, wrong))
    return not compare(before, after, ["fresh"] * len(before.errors)).same


def _short(message: str) -> str:
    return " ".join(message.split())[:_SHOWN]
