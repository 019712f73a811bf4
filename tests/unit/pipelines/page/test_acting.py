import html
import re
from typing import Any
from urllib.parse import parse_qsl, urlencode, urlsplit

from starlette.testclient import TestClient

from shiplift.pipelines.engines.answers import UnderWay
from shiplift.pipelines.page.actions import ACTIONS
from shiplift.pipelines.page.doors import Access
from shiplift.runtime.base.errors import Temporary
from tests.unit.pipelines.page.fakes import HOST, FakeEngine, browser

FORM = {"content-type": "application/x-www-form-urlencoded", "origin": f"http://{HOST}"}
RERUN = "/act?action=rerun&model=digits&version=2"
RUNNING = (UnderWay(release="digits-3-x", model="digits", version=3, stage="tune"),)


def released() -> FakeEngine:
    engine = FakeEngine()
    engine.release = "digits-2-x"
    return engine


def form_of(page: str) -> dict[str, str]:
    return {"form": re.findall(r'name="form" value="([^"]+)"', page)[0]}


def send(client: TestClient, address: str, headers: dict[str, str] = FORM, **fields: Any) -> Any:
    """Opens the form at an address, and sends it as a browser does."""
    page = client.get(address)
    body = urlencode(form_of(page.text) | {"reason": "it drifts"} | fields)
    return client.post(address, content=body, headers=headers)


def test_a_version_has_buttons_for_what_fits_it() -> None:
    client = browser(released())
    assert re.findall(r'id="act-(\w+)"', client.get("/release?model=digits&version=2").text) == [
        "rerun",
        "rollback",
        "retire",
    ]
    busy = browser(FakeEngine(under_way_now=RUNNING))
    assert re.findall(r'id="act-(\w+)"', busy.get("/release?model=digits&version=3").text) == ["abort", "cancel"]
    assert re.findall(r'id="act-(\w+)"', busy.get("/release?model=digits&version=1").text) == ["release"]
    assert busy.get("/act?action=release&model=digits&version=3").status_code == 400
    assert busy.get("/act?action=delete&model=digits&version=3").status_code == 404


def test_an_action_is_done_once_and_the_registry_keeps_who_when_and_why() -> None:
    engine = released()
    client = browser(engine)
    done = send(client, RERUN)
    assert done.status_code == 200
    assert "begins again" in done.text
    assert engine.done == ["order digits/2 again=True"]
    (where, key, begun), (_, again, ended) = engine.tags
    assert (where, key) == ("digits/2", again)
    assert (begun["outcome"], begun["reason"], begun["action"]) == ("begun", "it drifts", "rerun")
    assert "begins again" in ended["outcome"]
    twice = client.post(RERUN, content=done.request.content, headers=FORM)
    assert (twice.status_code, "sent before" in twice.text) == (400, True)
    assert len(engine.done) == 1


def test_every_action_of_the_table_can_be_confirmed_and_done() -> None:
    for name in ACTIONS:
        engine = released() if name in {"rerun", "rollback", "retire"} else FakeEngine()
        engine.under_way_now = RUNNING if name in {"abort", "cancel"} else ()
        engine.outcome = "waiting for approval" if name in {"approve", "reject"} else "promoted"
        address = f"/act?{urlencode({'action': name, 'model': 'digits', 'version': 3 if engine.under_way_now else 2})}"
        answer = send(browser(engine), address)
        assert engine.tags[0][2]["action"] == name
        if name == "rollback":  # there is nothing to roll back to: an error is told, and kept
            assert "no &lt;previous&gt; champion" in answer.text
            assert engine.tags[-1][2]["outcome"].startswith("failed: ")
        else:
            assert answer.status_code == 200
            assert engine.done


def test_what_another_site_could_send_is_refused() -> None:
    engine = released()
    client = browser(engine)
    for headers in (
        FORM | {"origin": "http://evil.example"},
        FORM | {"origin": "null"},
        FORM | {"sec-fetch-site": "cross-site"},
        FORM | {"sec-fetch-site": "same-site"},
        {"content-type": "text/plain"},
        {"content-type": "application/json"},
        {"content-type": "multipart/form-data; boundary=x"},
    ):
        assert send(client, RERUN, headers).status_code == 400, headers
    for form in ("x.y", "", "."):
        assert send(client, RERUN, form=form).status_code == 400, form
    stranger = browser(engine)
    body = urlencode(form_of(client.get(RERUN).text) | {"reason": "x"})
    assert stranger.post(RERUN, content=body, headers=FORM).status_code == 400  # another browser's form
    assert client.post(RERUN, headers=FORM | {"host": "evil.example"}).status_code == 421
    assert send(client, RERUN, reason="x" * (2 << 20)).status_code == 400
    many = urlencode([(f"field{at}", "") for at in range(1000)])
    assert client.post(RERUN, content=many, headers=FORM).status_code == 400
    assert client.put(RERUN).status_code == 405
    assert engine.done == []
    assert engine.tags == []


def test_an_action_without_a_reason_is_refused() -> None:
    engine = released()
    for reason in ("", "   "):
        assert send(browser(engine), RERUN, reason=reason).status_code == 400
    assert engine.done == []


def test_what_the_registry_can_t_be_told_is_not_done() -> None:
    engine = released()
    client = browser(engine)
    page = client.get(RERUN)
    engine.error = Temporary("the registry does not answer", do="Wait.")
    body = urlencode(form_of(page.text) | {"reason": "x"})
    answer = client.post(RERUN, content=body, headers=FORM)
    assert (answer.status_code, "does not answer" in answer.text) == (503, True)
    assert engine.done == []


def test_elsewhere_nobody_acts_without_the_token() -> None:
    engine = released()
    where = "10.0.0.5:8007"
    only_shown = browser(engine, Access(host="0.0.0.0"), host=where)
    page = only_shown.get("/release?model=digits&version=2")
    assert page.status_code == 200
    assert "act-" not in page.text
    assert only_shown.get(RERUN).status_code == 403
    assert only_shown.post(RERUN, headers=FORM).status_code == 403
    guarded = browser(engine, Access(host="0.0.0.0", token="s3cret"), host=where)
    headers = FORM | {"origin": f"http://{where}"}
    assert 'type="password"' in guarded.get(RERUN).text
    assert send(guarded, RERUN, headers).status_code == 403
    assert send(guarded, RERUN, headers, token="wrong").status_code == 403
    assert engine.done == []
    assert send(guarded, RERUN, headers, token="s3cret").status_code == 200
    assert engine.done == ["order digits/2 again=True"]


def test_hostile_reasons_and_names_are_text_in_the_forms_too() -> None:
    name = '"><svg onload=alert(1)>'
    engine = FakeEngine(models={name: 2})
    client = browser(engine)
    address = f"/act?{urlencode({'action': 'release', 'model': name, 'version': 1})}"
    page = client.get(address).text
    assert "<svg" not in page
    assert dict(parse_qsl(urlsplit(html.unescape(re.findall(r'action="([^"]+)"', page)[0])).query))["model"] == name
    answer = send(client, address, reason="<script>\u202e")
    assert answer.status_code == 200
    assert "<svg" not in answer.text
    assert engine.tags[0][2]["reason"] == "<script>\\u202e"
