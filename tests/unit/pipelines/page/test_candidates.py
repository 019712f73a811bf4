"""A version that does not serve is asked on the page: by fields, by JSON, or by rows of its proof."""

import html
import json
import re
from typing import Any

import pytest

from shiplift.pipelines.page.doors import Access
from shiplift.runtime.base.errors import ServerFailed
from shiplift.runtime.records.kinds.contract import DeclaredImage, DeclaredText
from shiplift.runtime.records.tensor import Signature
from shiplift.runtime.records.verdict import Outcome, Packages
from tests.unit.examples import admitted, artifact, package, tensor
from tests.unit.pipelines.page.fakes import FakeEngine, browser, report
from tests.unit.pipelines.page.test_acting import send
from tests.unit.pipelines.page.test_views import shown

ASK = "/ask?model=digits&version=2"
INPUTS = (tensor("text", -1, 1, datatype="BYTES"),)


def refused(kind: Any = DeclaredText, *, packages: bool = True, **changes: Any) -> FakeEngine:
    """An engine whose version 2 was refused after two forms of it were built."""
    contract = kind(signature=Signature(inputs=INPUTS, outputs=(tensor("y", -1, 1),)), example=artifact())
    built = (package(), package(precision="int8"))
    records: list[Any] = [admitted().model_copy(update={"contract": contract})]
    records += [Packages(target="local-cpu", packages=built, checks=())] if packages else []
    recorded = [report(version=2, verdict=Outcome.FAIL, alias="", exit_code=20, reason="too slow")]
    return FakeEngine(recorded=recorded, records=tuple(records), **changes)


def answered(engine: FakeEngine, **fields: Any) -> str:
    with browser(engine) as client:  # one event loop for all requests
        sent = send(client, ASK, **fields)
        assert sent.status_code == 303, sent.text
        return client.get(sent.headers["location"]).text


def test_a_refused_version_is_asked_a_row() -> None:
    engine = refused()
    assert "Try this version" in browser(engine).get("/release?model=digits&version=2").text
    form = browser(engine).get(ASK).text
    assert re.findall("<option[^>]*>([^<]*)</option>", form) == [
        "onnxruntime-fp32",
        "onnxruntime-int8",
        "the registered model alone, twice",
    ]
    page = answered(engine, column0="It's <i>", variant="onnxruntime-int8")
    assert engine.done == ["ask digits/2 onnxruntime-int8: " + json.dumps({"text": "It's <i>"})]
    assert "<b>1</b>" not in page
    text = shown(page)
    for words in ("no difference found", '{"y": "<b>1</b>"}', '{"y": 2}', "mlflow.pyfunc"):
        assert words in text, words
    assert "The answers differ" in answered(refused(differs="2 is not 1"), column0="x")


def test_rows_of_the_proof_and_json_are_asked_too() -> None:
    engine = refused()
    answered(engine, column0="", rows="12, 40", variant="onnxruntime-fp32")
    answered(engine, json='{"text": "a"}', variant="")
    assert engine.done == ["ask digits/2 onnxruntime-fp32: rows [12, 40]", 'ask digits/2 : {"text": "a"}']


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ({"variant": "<b>"}, "there is no form '<b>'"),
        ({"rows": "1; 2"}, "'1; 2' are no rows"),
        ({"rows": "1 " * 17}, "are no rows"),
        ({"json": "[1]"}, "the row is not a JSON object"),
        ({"json": "{"}, "not JSON"),
    ],
)
def test_what_makes_no_sense_is_told_beside_the_form(fields: dict[str, Any], told: str) -> None:
    engine = refused()
    page = send(browser(engine), ASK, **fields)
    assert page.status_code == 200
    assert told in html.unescape(page.text)
    assert engine.done == []


def test_what_can_t_be_asked_says_why() -> None:
    failing = ServerFailed("Triton <did> not start", do="See the log.")
    page = answered(refused(error=failing), column0="x")
    assert "Triton &lt;did&gt; not start" in page
    assert "See the log." in page
    assert "hx-trigger" not in page  # it is over
    never = FakeEngine(recorded=[report(version=2)])
    assert browser(never).get(ASK).status_code == 404
    assert "was not admitted" in shown(browser(never).get(ASK).text)
    assert "Try this version" not in browser(never).get("/release?model=digits&version=2").text
    assert browser(refused()).get(f"{ASK}&answer=other").status_code == 404
    looking = browser(refused(), Access(host="0.0.0.0"), host="10.0.0.1")
    assert looking.get(ASK).status_code == 403


def test_only_models_of_images_take_files() -> None:
    page = browser(refused(DeclaredImage, packages=False)).get(ASK).text
    assert 'accept="image/jpeg,image/png"' in page
    assert 'type="file"' not in browser(refused()).get(ASK).text
