import yaml

from shiplift.pipelines.page.what_if import spec_of
from shiplift.runtime.gates import policy
from shiplift.runtime.records.verdict import Verdict
from shiplift.runtime.spec.admitted import Admitted
from shiplift.runtime.spec.groups import Requirements
from shiplift.runtime.spec.measurement import Slo
from shiplift.runtime.spec.model import Data, Quality
from shiplift.runtime.spec.rules import Policy
from tests.unit.examples import admitted, champion, comparison, deployment, exported, load_report, point
from tests.unit.pipelines.page.fakes import FakeEngine, browser
from tests.unit.pipelines.page.test_views import shown


def judged() -> Verdict:
    measured = load_report(point(p99_ms=9), comparison=comparison())
    evidence = policy.evidence_of(exported(), deployment(), measured, champion())
    return policy.verdict(evidence, Requirements(quality=Quality(), data=Data(), slo=Slo(p99_ms=10), policy=Policy()))


def released() -> FakeEngine:
    return FakeEngine(records=(admitted(p99_ms=10), judged()))


def test_the_form_begins_with_the_newest_release_s_limits() -> None:
    page = browser(released()).get("/what-if?name=digits").text
    assert 'name="slo.p99_ms" value="10"' in page
    assert "would flip" not in page


def test_other_limits_say_which_verdicts_flip_and_why() -> None:
    client = browser(released())
    same = shown(client.get("/what-if", params={"name": "digits", "slo.p99_ms": "10"}).text)
    assert "0 of 2 verdicts would flip" in same
    stricter = " ".join(shown(client.get("/what-if", params={"name": "digits", "slo.p99_ms": "8"}).text).split())
    assert "2 of 2 verdicts would flip" in stricter
    assert "p99: pass → fail, 9 against 10 → 8" in stricter


def test_what_is_no_limit_is_named_and_what_has_none_is_not_found() -> None:
    client = browser(released())
    for text in ("x", "nan", "inf", "<b>", "-1"):
        page = client.get("/what-if", params={"name": "digits", "slo.p99_ms": text})
        assert page.status_code == 200
        assert 'role="alert"' in page.text, text
        assert "<b>" not in page.text
    assert browser(FakeEngine()).get("/what-if?name=digits").status_code == 404
    assert browser(FakeEngine(recorded=[])).get("/what-if?name=digits").status_code == 404


def test_only_the_given_limits_change() -> None:
    before: Admitted = admitted(p99_ms=10)
    changed = yaml.safe_load(spec_of(before, {"slo.p99_ms": " 8 ", "quality.min_score": "0.5"}))
    assert (changed["slo"]["p99_ms"], changed["quality"]["min_score"]) == (8, 0.5)
    assert "p99_ms" not in yaml.safe_load(spec_of(before, {"slo.p99_ms": ""}))["slo"]
