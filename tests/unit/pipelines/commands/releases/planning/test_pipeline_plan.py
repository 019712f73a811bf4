import json
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from shiplift.pipelines.commands.releases.pipelines.check import Composed
from shiplift.pipelines.commands.releases.planning import pipeline_plan
from shiplift.pipelines.engines.protocol import PastReleases
from shiplift.runtime.base.errors import NotFound, SpecInvalid, UsageError
from shiplift.runtime.planning.arrivals import Arrivals
from shiplift.runtime.planning.plan import Plan
from shiplift.runtime.planning.profiles import Profiles
from shiplift.runtime.records.base import Record
from shiplift.runtime.records.kinds.package import Package
from shiplift.runtime.records.measurement import LoadReport, MemberLoad, Tuned
from shiplift.runtime.records.release import ReleaseReport
from shiplift.runtime.serving.bundles.decoders import members_of
from shiplift.runtime.spec.pipeline import PipelineSpec
from shiplift.runtime.store.artifacts import ArtifactStore
from tests.unit.examples import config, load_report, package, point, trial
from tests.unit.pipelines_of_models import CASCADE, OCR, SOURCES, STATIC, members

ARRIVALS = Arrivals(rate_per_s=50)
FILE = """
members:
  small: [{batch_ms: {1: 2, 8: 6}, max_batch: 8, spread: 0.1, memory_mb: 50}]
  large: [{batch_ms: {1: 12, 8: 50}, max_batch: 8, spread: 0.1, memory_mb: 400}]
steps:
  think: {probability: 0.2}
"""


@pytest.fixture(autouse=True)
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    """Few requests: how well a plan holds is tested with the planner."""
    monkeypatch.setattr("shiplift.runtime.planning.search.REQUESTS", 500)
    monkeypatch.setattr("shiplift.runtime.planning.plan.CONFIRMING", 1000)


class Engine:
    """An engine, as far as a plan asks it: what it `remembers` is the same for every member."""

    verified = True

    def __init__(self, *remembers: Record) -> None:
        self.remembers, self.asked = remembers, 0

    def members(self, pipeline: PipelineSpec) -> dict[str, Package]:
        self.asked += 1
        known = members()
        return {name: known[name] for name in pipeline.members}

    def report(self, model: str, version: int) -> ReleaseReport:
        return cast("ReleaseReport", f"{model}/{version}")  # only `history` looks at it

    def history(self, report: ReleaseReport) -> "Engine":
        return self

    def last(self, kind: type[Record]) -> Record | None:
        return next((record for record in self.remembers if isinstance(record, kind)), None)


def measured() -> tuple[Tuned, LoadReport]:
    trials = tuple(
        trial(config=config(max_batch=batch), compute_ms=ms, throughput_per_s=1000 * batch / ms)
        for batch, ms in ((1, 4.0), (8, 16.0))
    )
    alone = point(1, 200, compute_ms=4, queue_ms=0).model_copy(update={"p50_ms": 4.5, "p99_ms": 6.0})
    return Tuned(target="local-cpu", package=package(), best=trials[0], trials=trials), load_report(alone)


def composed(engine: Engine, folder: Path, text: str, known: Profiles) -> Composed:
    for name, source in SOURCES.items():
        (folder / name).write_bytes(source)
    return pipeline_plan.compose(cast("PastReleases", engine), folder / "pipeline.yaml", text, known)


def planned(engine: Engine, folder: Path, text: str, profiles: str = "", p99_ms: float | None = 60) -> Plan:
    file = folder / "profiles.yaml"
    file.write_text(profiles)
    known = pipeline_plan.known_profiles(file)
    return pipeline_plan.make(
        cast("PastReleases", engine), composed(engine, folder, text, known), known, ARRIVALS, p99_ms, 0
    )


def test_a_file_with_every_member_needs_no_release(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    engine = Engine()
    made = planned(engine, tmp_path, CASCADE, FILE)
    assert engine.asked == 0
    assert [member.name for member in made.members] == ["small", "large"]
    pipeline_plan.show(made)
    shown = capsys.readouterr().out
    for part in (
        "small",
        "large",
        f"p99 {made.p99_ms:.4g} ms",
        "(limit 60 ms)",
        f"{made.cores:g} cores",
        "worst case",
        f"instances: {made.instances} of the pipeline itself",
    ):
        assert part in shown
    assert Plan.model_validate(json.loads(made.model_dump_json())) == made


def test_members_are_looked_up_in_their_releases(tmp_path: Path) -> None:
    engine = Engine(*measured())
    made = planned(engine, tmp_path, STATIC)
    assert engine.asked == 1
    assert made.instances == 0  # an ensemble
    assert made.notes == ()
    assert made.p50_ms > 2 * 4 + 0.4
    assert all(member.config.max_batch > 1 for member in made.members)  # their edges have any number of rows


def test_members_at_the_same_version_are_one(tmp_path: Path) -> None:
    """As in the bundle: two steps then queue for the same instances."""
    twice = STATIC.replace("classify: {model: classifier, version: 3, follow: pinned}", "classify: {model: encoder}")
    file = "members: {encode: [{batch_ms: {1: 2}}], classify: [{batch_ms: {1: 2}}]}"
    (member,) = planned(Engine(), tmp_path, twice, file).members
    assert member.name == "encode"
    assert member.utilisation == pytest.approx(2 * 50 * 0.002 / member.config.instances, rel=0.1)


def test_what_the_plan_takes_for_granted_is_said(tmp_path: Path) -> None:
    engine = Engine(*measured())
    engine.verified = False
    made = planned(engine, tmp_path, CASCADE)
    assert ["not checked" in note or "always" in note for note in made.notes] == [True, True]
    assert planned(Engine(), tmp_path, CASCADE, FILE).notes == ()


def test_a_member_without_measurements_says_how_to_get_them(tmp_path: Path) -> None:
    with pytest.raises(NotFound, match=r"shiplift rerun encoder/2.*--profiles"):
        planned(Engine(), tmp_path, STATIC)
    tuning, _ = measured()
    untimed = tuning.model_copy(update={"trials": (trial(compute_ms=0),)})
    with pytest.raises(NotFound, match="no trials with execution times"):
        planned(Engine(untimed), tmp_path, STATIC)


DECODED = """
name: seen
inputs: {file: {datatype: UINT8, shape: [1, -1]}}
outputs: {heat: {datatype: FP32, shape: [1, 1, -1, -1]}}
members: {decode: {image: {resize: [8, 8]}}, detect: {model: ocr-detect}}
steps:
  open: {member: decode, inputs: {image: file}, outputs: {pixels: pixels}}
  look: {member: detect, inputs: {image: pixels}, outputs: {heat: heat}}
"""


class Released(Engine):
    """An engine with releases of the pipeline itself: their load tests, oldest first, by version."""

    def __init__(self, store: Path, *tests: tuple[MemberLoad, ...]) -> None:
        super().__init__(*measured())
        self.store, self.tests = ArtifactStore(store.as_uri()), tests

    def members(self, pipeline: PipelineSpec) -> dict[str, Package]:
        known = members()
        return cast("dict[str, Package]", members_of(pipeline, lambda member: known["detect"], self.store))

    def reports(self, model: str) -> list[ReleaseReport]:
        assert model == "seen"
        return [cast("ReleaseReport", SimpleNamespace(version=version)) for version in range(1, len(self.tests) + 1)]

    def history(self, report: ReleaseReport) -> Engine:
        version = getattr(report, "version", 0)
        if not version:
            return self
        return Engine(load_report(point(1, 200)).model_copy(update={"members": self.tests[version - 1]}))


def decoding(compute_ms: float) -> tuple[MemberLoad, ...]:
    load = MemberLoad(
        name="decode", model="image1", version=1, requests_per_request=1, batch=1, queue_ms=0, compute_ms=compute_ms
    )
    return (load,)


def test_a_decoder_takes_what_the_pipeline_s_newest_load_test_measured(tmp_path: Path) -> None:
    made = planned(Released(tmp_path, decoding(30.0), decoding(7.0), ()), tmp_path, DECODED, p99_ms=100)
    decode, detect = made.members
    assert (decode.name, detect.name) == ("decode", "detect")
    assert decode.utilisation == pytest.approx(50 * 0.007 / decode.config.instances, rel=0.1)


@pytest.mark.parametrize("tests", [(), ((),), (decoding(0.0),)])
def test_a_decoder_that_nothing_measured_says_how_to_get_its_time(
    tmp_path: Path, tests: tuple[tuple[MemberLoad, ...], ...]
) -> None:
    with pytest.raises(NotFound, match=r"how long the decoder 'decode' takes") as unknown:
        planned(Released(tmp_path, *tests), tmp_path, DECODED)
    assert "Release the pipeline once" in unknown.value.do
    assert "--profiles" in unknown.value.do


def test_mistakes_are_refused_before_anything_is_planned(tmp_path: Path) -> None:
    with pytest.raises(SpecInvalid, match="there is no member"):
        planned(Engine(), tmp_path, CASCADE.replace("member: large", "member: nobody"), FILE)
    with pytest.raises(SpecInvalid, match="no such step"):
        planned(Engine(), tmp_path, CASCADE, FILE.replace("think:", "thinks:"))
    with pytest.raises(SpecInvalid, match=r"how long does crop\.py take"):
        planned(Engine(*measured()), tmp_path, OCR)
    with pytest.raises(UsageError, match="--p99-ms"):
        planned(Engine(), tmp_path, CASCADE, FILE, p99_ms=None)


def test_arrivals_are_a_rate_or_recorded(tmp_path: Path) -> None:
    assert pipeline_plan.arrivals_of(200, 2, None) == Arrivals(rate_per_s=200, cv=2)
    assert pipeline_plan.arrivals_of(200, None, None).cv == 1
    file = tmp_path / "times.txt"
    file.write_text("\n".join(str(0.01 * at) for at in range(1001)))
    assert pipeline_plan.arrivals_of(None, None, file).rate_per_s == pytest.approx(100)
    for rate, cv, recorded in ((None, None, None), (200, None, file), (None, 1, file)):
        with pytest.raises(UsageError):
            pipeline_plan.arrivals_of(rate, cv, recorded)
