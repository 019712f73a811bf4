"""A release's records are found by type; of several targets' records, the one for the target that decided."""

from pathlib import Path
from typing import TypeVar

import pytest

from shiplift.pipelines.release import RELEASE
from shiplift.runtime.records.base import Record
from shiplift.runtime.records.kinds.package import Package
from shiplift.runtime.records.measurement import LoadReport, Tuned
from shiplift.runtime.records.precision import Candidate, Candidates
from shiplift.runtime.records.release import StageRun
from shiplift.runtime.records.verdict import Packages, Verdict
from shiplift.runtime.store.artifacts import ArtifactStore
from shiplift.runtime.store.history import History, load_table_or_nothing
from tests.unit.examples import artifact, check, deployment, load_report, package, trial

R = TypeVar("R", bound=Record)


class Kept(dict[str, Record]):
    """Entries by key."""

    def recall(self, key: str, stage: str, kind: type[R]) -> R | None:
        assert key.startswith(stage), "asked of the stage that gives it"
        record = self.get(key)
        return record if isinstance(record, kind) else None


def run(name: str, target: str = "", **changes: str) -> StageRun:
    return StageRun.model_validate({"name": name, "target": target, "key": f"{name} {target}".strip(), **changes})


def candidates(target: str) -> Candidates:
    return Candidates(target=target, metric="accuracy", candidates=(Candidate(precision="fp32", model=artifact()),))


def tuned(target: str) -> Tuned:
    return Tuned(target=target, package=package(target=target), best=trial(), trials=(trial(),))


def of(*targets: str, deployed: str = "", refused: str = "") -> History:
    """The history of a release with three stages per target."""
    kept, runs = Kept(), []
    for target in targets:
        kept[f"quantize {target}"], kept[f"tune {target}"] = candidates(target), tuned(target)
        runs += [run("quantize", target), run("tune", target, outcome="refused" if target == refused else "ok")]
    if deployed:
        kept["deploy"] = deployment(target=deployed)
        runs.append(run("deploy"))
    return History(kept, runs, RELEASE.givers)


def test_a_record_is_found_by_its_type() -> None:
    verdict = Verdict.of((check(),))
    kept = Kept({"load_test": load_report(), "gate": verdict})
    history = History(kept, [run("load_test"), StageRun(name="promote"), run("gate")], RELEASE.givers)
    assert history.last(LoadReport) == load_report()
    assert history.last(Verdict) == verdict
    assert history.last(Tuned) is None


@pytest.mark.parametrize(
    ("history", "target"),
    [
        (of("a", "b"), "a"),
        (of("a", "b", refused="b"), "b"),
        (of("a", "b", deployed="b"), "b"),
        (of("a", "b", "c", deployed="c", refused="b"), "c"),
        (of("a", "b", deployed="gone", refused="b"), "b"),
    ],
)
def test_of_several_targets_the_deployed_one_tells_the_story_or_the_one_that_ended_it(
    history: History, target: str
) -> None:
    targets = [record.target if record else None for record in (history.last(Candidates), history.last(Tuned))]
    assert targets == [target, target]


@pytest.mark.parametrize("outcome", ["failed", "cancelled", "skipped"])
def test_a_stage_that_gave_nothing_is_not_asked_for_anything(outcome: str) -> None:
    assert History({}, [run("tune", "a", outcome=outcome)], RELEASE.givers).last(Tuned) is None  # type: ignore[arg-type]


def test_a_stage_that_ran_again_tells_of_its_last_run() -> None:
    kept = Kept({"tune a": tuned("a"), "tune again": tuned("a").model_copy(update={"exhausted": True})})
    history = History(kept, [run("tune", "a"), run("tune", "a", key="tune again")], RELEASE.givers)
    assert history.last(Tuned) == kept["tune again"]


@pytest.mark.parametrize(
    ("kept", "version"),
    [
        ({"deploy": deployment(version=1), "tune": tuned("t")}, 1),
        ({"tune": tuned("t"), "package": Packages(target="t", packages=(package(version=3),), checks=())}, 2),
        ({"package": Packages(target="t", packages=(package(version=3),), checks=())}, 3),
        ({"package": Packages(target="t", packages=(), checks=())}, None),
        ({}, None),
    ],
)
def test_the_package_is_what_came_closest_to_serving(kept: dict[str, Record], version: int | None) -> None:
    last: Package | None = History(
        Kept(kept), [run(name) for name in ("package", "tune", "deploy")], RELEASE.givers
    ).package
    assert (last.version if last else None) == version


def test_the_load_generator_s_table_is_read_unless_it_is_gone_or_too_long_for_a_page(tmp_path: Path) -> None:
    store = ArtifactStore(tmp_path.as_uri())
    short, long = store.put_bytes(b"phase,side\n"), store.put_bytes(b"x" * 300_000)
    assert load_table_or_nothing(store, load_report(table=short)) == "phase,side\n"
    nothing = [None, load_report(), load_report(table=long), load_report(table=artifact("f"))]
    assert [load_table_or_nothing(store, each) for each in nothing] == ["", "", "", ""]
