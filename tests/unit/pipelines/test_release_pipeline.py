import importlib

import pytest

from shiplift.pipelines.graph import Stage
from shiplift.pipelines.release import RELEASE
from shiplift.runtime.admission.inspection import INSPECT
from shiplift.runtime.confinement.policy import Entry
from shiplift.runtime.families.graph.candidates import BUILD
from shiplift.runtime.families.graph.export import CONVERT, VERIFY
from shiplift.runtime.families.packaging.packages import ANSWER
from shiplift.runtime.measure import logged
from shiplift.runtime.records.base import Sections
from shiplift.runtime.spec.groups import Acceptance, Delivery, Requirements, ServingSpace


def test_a_release_is_these_stages_in_this_order() -> None:
    assert [stage.name for stage in RELEASE.flat()] == [
        "admit",
        "find_champion",
        "find_targets",
        "export",
        "quantize",
        "package",
        "tune",
        "deploy",
        "load_test",
        "shadow",
        "gate",
        "promote",
    ]
    assert RELEASE.on_exit is not None
    assert RELEASE.on_exit.name == "conclude"


@pytest.mark.parametrize("stage", list(RELEASE.flat()), ids=lambda stage: stage.name)
def test_a_pod_finds_a_step_by_its_entry(stage: Stage) -> None:
    module, _, name = stage.entry.partition(":")
    assert module == f"shiplift.steps.{name}"
    assert getattr(importlib.import_module(module), name) is stage.step


def test_only_what_reads_or_moves_the_world_is_never_a_cache_hit() -> None:
    keeps = {stage.name: stage.at.keep for stage in RELEASE.flat()}
    assert {name for name, keep in keeps.items() if keep == "never"} == {"find_champion", "find_targets", "promote"}
    assert {name for name, keep in keeps.items() if keep == "effect"} == {"deploy"}


def test_stages_that_open_an_author_s_files_have_no_credentials_in_a_pod() -> None:
    sandboxed = [stage.name for stage in RELEASE.flat() if stage.at.sandbox]
    assert sandboxed == ["admit", "find_targets", "export", "quantize", "package", "tune"]  # the second shares a pod


WARM = [stage.at.warm for stage in RELEASE.flat() if stage.at.warm]


def test_what_every_stage_s_sandbox_imports_is_started_ahead() -> None:
    assert WARM == [INSPECT, CONVERT, BUILD, ANSWER]


@pytest.mark.parametrize("entry", [*WARM, VERIFY, logged._READ])
def test_a_sandbox_finds_its_function_by_its_entry(entry: Entry) -> None:
    module, _, name = entry.function.partition(":")
    assert callable(getattr(importlib.import_module(module), name))


def test_every_setting_of_the_spec_reaches_a_step() -> None:
    first = next(RELEASE.flat())
    assert issubclass(first.gives, Sections)
    taken = {name: kind for stage in RELEASE.flat() for name, kind in stage.takes.items()}
    grouped = {name for kind in (Requirements, Acceptance, ServingSpace, Delivery) for name in kind.model_fields}
    assert set(first.gives.parts()) - taken.keys() - grouped == {"scan"}  # what the report alone shows
    assert {Requirements, Acceptance, ServingSpace, Delivery} <= set(taken.values())


def test_a_changed_limit_judges_again_and_measures_nothing() -> None:
    """The design's promise, read off the edges: limits of the SLO enter no stage that measures."""
    measuring = {"export", "quantize", "tune", "deploy", "load_test"}
    assert {stage.name for stage in RELEASE.flat() if "requirements" in stage.takes} & measuring == set()
