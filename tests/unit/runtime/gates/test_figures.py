"""What of a release becomes metrics of the registry."""

from shiplift.runtime.gates.figures import figures_of
from shiplift.runtime.gates.report import Story
from shiplift.runtime.records.measurement import Tuned
from shiplift.runtime.records.precision import Candidate, Candidates, Slice
from tests.unit.examples import admitted, artifact, check, load_report, package, release_report, trial


def test_what_serves_and_every_form_have_their_sections() -> None:
    slow, fast = trial(engine="openvino", throughput_per_s=10), trial(throughput_per_s=20, p99_ms=3)
    tuned = Tuned(target="t", package=package(), best=fast, trials=(slow, fast))
    candidates = Candidates(
        target="t",
        metric="accuracy",
        candidates=(
            Candidate(
                precision="fp32",
                model=artifact(),
                score=0.9,
                slices=(Slice(name="label=a/../b", score=0.8, error=0, samples=3),),
            ),
            Candidate(precision="fp32", engine="openvino", model=artifact(), score=0.8),
        ),
    )
    story = Story(admitted=admitted(), candidates=candidates, tuned=tuned, load_report=load_report(memory_mb=64))
    figures = figures_of(release_report(checks=(check(measured=7.0),)), story)
    found = {(each.section, each.name): each.value for each in figures}
    assert found["", "p99"] == 7.0
    assert {"p50_ms", "p95_ms", "p99_ms", "throughput_per_s", "memory_mb", "score"} <= {
        name for section, name in found if section == "served"
    }
    assert found[f"form {fast.described}", "p99_ms"] == 3
    assert found[f"form {slow.described}", "score"] == 0.8
    assert found["score by slice", "label=a/../b"] == 0.8
    steps = [each.step for each in figures if (each.section, each.name) == ("load by concurrency", "p99_ms")]
    assert steps == [point.concurrency for point in load_report().points]
    assert figures_of(release_report(checks=()), Story()) == ()
