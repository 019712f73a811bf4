import base64
import contextlib
import html
import json
import re
import shlex
import subprocess
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

from shiplift.pipelines.page.doors import Access
from shiplift.pipelines.page.requests import body_of, entries_of, example, files_in, tensors_of
from shiplift.pipelines.page.snippets import snippets
from shiplift.runtime.base.errors import Temporary, UsageError
from shiplift.runtime.records.kinds.contract import DeclaredImage
from shiplift.runtime.records.release import ReleaseReport
from shiplift.runtime.records.scoring import Scoring
from shiplift.runtime.records.tensor import Signature
from shiplift.runtime.serving.discovery import ServedModel
from tests.unit.examples import admitted, artifact, tensor
from tests.unit.pipelines.page.fakes import FakeEngine, browser
from tests.unit.pipelines.page.test_acting import FORM, send
from tests.unit.pipelines.page.test_views import HOSTILE, shown

OUTPUTS = (tensor("output", -1, 1),)
COLUMNS = [
    {"type": "double", "name": "size", "required": True},
    {"type": "long", "name": "rooms", "required": True},
    {"type": "string", "name": "a town", "required": True},
    {"type": "boolean", "name": "new", "required": True},
    {"type": "double", "name": "age", "required": False},
]
DATATYPES = {"double": "FP64", "long": "INT64", "string": "BYTES", "boolean": "BOOL"}


def served(*inputs: Any, schema: Any = None, model: str = "digits") -> ServedModel:
    return ServedModel(
        model=model,
        name="digits",
        version=2,
        grpc="127.0.0.1:2",
        http="http://127.0.0.1:1",
        signature=Signature(inputs=inputs, outputs=OUTPUTS),
        scoring=Scoring(inputs=json.dumps(schema)) if schema else None,
        invocations="http://127.0.0.1:3/models/digits/invocations",
    )


def table(columns: list[dict[str, Any]] = COLUMNS, model: str = "digits") -> ServedModel:
    inputs = [tensor(str(each["name"]), -1, 1, datatype=DATATYPES[each["type"]]) for each in columns]
    return served(*inputs, schema=columns, model=model)


GIVEN: dict[str, Any] = {"column0": "1.5", "column1": "3", "column2": "It's <b>", "column3": "true", "column4": ""}


def test_columns_become_fields_and_fields_a_row() -> None:
    entries = entries_of(table(), {})
    assert [(each.label, each.kind, each.value, each.required) for each in entries] == [
        ("size", "double", "0", True),
        ("rooms", "long", "0", True),
        ("a town", "string", "", True),
        ("new", "boolean", "false", True),
        ("age", "double", "", False),
    ]
    split = json.loads(body_of(table(), GIVEN))["dataframe_split"]
    assert split == {"columns": ["size", "rooms", "a town", "new"], "data": [[1.5, 3, "It's <b>", True]]}


def test_a_value_that_is_none_of_its_kind_is_named() -> None:
    wrong = {"column0": ("x", "", "nan", "inf", "1,5"), "column1": ("1.5", "x"), "column3": ("maybe", "")}
    for name, texts in wrong.items():
        for text in texts:
            with pytest.raises(UsageError, match=re.escape(repr(text))):
                body_of(table(), GIVEN | {name: text})


def test_tensors_and_many_columns_are_written_as_json() -> None:
    image = served(tensor("image", -1, 2, 3))
    assert entries_of(image, {}) == ()
    assert json.loads(example(image)) == {"inputs": [[[0, 0, 0], [0, 0, 0]]]}
    pair = served(tensor("a", -1, 2), tensor("b", -1, 1, datatype="BYTES"))
    assert json.loads(example(pair)) == {"inputs": {"a": [[0, 0]], "b": [[""]]}}
    wide = table([{"type": "double", "name": f"c{at}", "required": True} for at in range(100)])
    assert entries_of(wide, {}) == ()
    assert len(json.loads(example(wide))["dataframe_split"]["data"][0]) == 100
    for text in ("{", "", "[" * 100_000):
        with pytest.raises(UsageError, match="not JSON"):
            body_of(image, {"json": text})


def test_the_same_call_is_right_for_every_client() -> None:
    body = body_of(table(), GIVEN)
    calls = snippets(table(), body)
    words = shlex.split(calls["curl"])
    assert (words[1], words[-1]) == (table().invocations, body)
    namespace: dict[str, Any] = {}
    exec(calls["Python"].partition("answer")[0].replace("import httpx", ""), namespace)
    assert namespace["request"] == json.loads(body)
    tensors = tensors_of(table(), body)
    assert tensors == {
        "size": ("FP64", [[1.5]]),
        "rooms": ("INT64", [[3]]),
        "a town": ("BYTES", [["It's <b>"]]),
        "new": ("BOOL", [[True]]),
    }
    compile(calls["tritonclient"], "snippet", "exec")
    assert "'a town', list(array.shape), 'BYTES'" in calls["tritonclient"]
    assert np.array(tensors["size"][1], dtype="float64").shape == (1, 1)
    records = json.dumps({"dataframe_records": [{"size": 1}]})
    assert set(snippets(table(), records)) == {"curl", "Python"}
    for odd in ("[1]", "3", '{"dataframe_split": {"columns": ["size"], "data": [1]}}', '{"inputs": 3}'):
        assert set(snippets(table(), odd)) >= {"curl", "Python"}


def test_a_picture_is_sent_as_base64_and_calls_read_it_from_a_file(tmp_path: Path) -> None:
    picture = b"\xff\xd8\xff" + bytes(range(256)) * 40
    encoded = base64.b64encode(picture).decode()
    image = served(tensor("input", -1, 1, datatype="BYTES"), schema=[{"type": "string", "required": True}])
    (entry,) = entries_of(image, {"column0": encoded}, "image")
    assert entry.files == "image/jpeg,image/png"
    assert entries_of(image, {}, "text")[0].files == ""
    files = files_in([entry])
    assert files == {encoded: "image.jpg"}
    assert files_in(entries_of(image, {"column0": "no file!"}, "image")) == {}
    calls = snippets(image, body_of(image, {"column0": encoded}), files)
    assert all(encoded not in text for text in calls.values())
    (tmp_path / "image.jpg").write_bytes(picture)
    written = calls["curl"].partition(" | ")[0]
    said = subprocess.run(["bash", "-c", written], cwd=tmp_path, capture_output=True, check=True).stdout
    assert json.loads(said) == {"inputs": [[encoded]]}
    namespace: dict[str, Any] = {}
    with contextlib.chdir(tmp_path):
        exec(calls["Python"].partition("\nanswer")[0].replace("import httpx", ""), namespace)
    assert namespace["request"] == {"inputs": [[encoded]]}
    compile(calls["tritonclient"], "snippet", "exec")


def test_the_form_waits_for_the_kind_of_model_on_a_busy_machine() -> None:
    class Busy(FakeEngine):
        refused = 0

        def report(self, model: str, version: int) -> ReleaseReport:
            self.refused += 1
            if self.refused < 3:
                raise Temporary("no answer for 4 s", do="It is asked again.")
            return super().report(model, version)

    image = served(tensor("input", -1, 1, datatype="BYTES"), schema=[{"type": "string", "required": True}])
    contract = DeclaredImage(signature=image.signature, example=artifact())
    engine = Busy(served=[image], records=(admitted().model_copy(update={"contract": contract}),))
    assert 'type="file"' in browser(engine).get("/try?name=digits").text


def test_a_large_picture_fits_on_this_machine_only() -> None:
    image = served(tensor("input", -1, 1, datatype="BYTES"), schema=[{"type": "string", "required": True}])
    large = base64.b64encode(bytes(1 << 20)).decode()
    asked: list[int] = []

    def answer(request: httpx.Request) -> httpx.Response:
        asked.append(len(request.content))
        return httpx.Response(200, json={})

    engine, transport = FakeEngine(served=[image]), httpx.MockTransport(answer)
    assert send(browser(engine, transport=transport), "/try?name=digits", column0=large).status_code == 200
    assert asked == [len(large) + len('{"inputs": [[""]]}')]
    elsewhere = browser(engine, Access(host="0.0.0.0", token="t"), host="10.0.0.1", transport=transport)
    headers = FORM | {"origin": "http://10.0.0.1"}
    refused = send(elsewhere, "/try?name=digits", headers, column0=large, token="t")
    assert (refused.status_code, "the limit" in refused.text) == (400, True)


def test_a_request_is_sent_and_its_answer_and_latency_are_shown() -> None:
    asked: list[httpx.Request] = []

    def answer(request: httpx.Request) -> httpx.Response:
        asked.append(request)
        return httpx.Response(200, json={"predictions": ["<script>alert(1)</script>"]})

    engine = FakeEngine(served=[table()])
    client = browser(engine, transport=httpx.MockTransport(answer))
    page = send(client, "/try?name=digits", **GIVEN).text
    assert json.loads(asked[0].content)["dataframe_split"]["data"] == [[1.5, 3, "It's <b>", True]]
    assert "<script>alert" not in page
    text = shown(page)
    for words in ("<script>alert(1)</script>", "ms", "tritonclient", "curl http://127.0.0.1:3/models/digits"):
        assert words in text, words
    assert 'value="1.5"' in page  # what was sent stands in the form


def test_errors_of_the_form_the_model_and_the_network_are_told() -> None:
    engine = FakeEngine(served=[table()])
    refusing = httpx.MockTransport(lambda _: httpx.Response(400, json={"message": "<no>"}))
    page = send(browser(engine, transport=refusing), "/try?name=digits", **GIVEN).text
    assert "&lt;no&gt;" in page
    assert "Error" in page

    def gone(_: httpx.Request) -> httpx.Response:
        raise httpx.ConnectError("refused")

    page = send(browser(engine, transport=httpx.MockTransport(gone)), "/try?name=digits", **GIVEN).text
    assert "the scoring server does not answer" in page
    page = send(browser(engine), "/try?name=digits", **(GIVEN | {"column0": "<x>"})).text
    assert "which is not a number" in html.unescape(page)
    assert browser(engine).get("/try?name=nobody").status_code == 404
    assert 'name="json"' in browser(engine).get("/try?name=digits&json=1").text
    assert browser(engine).post("/try?name=digits").status_code == 400  # not a form of this page


def test_hostile_columns_are_text() -> None:
    for name in HOSTILE:
        columns = [{"type": "string", "name": name, "required": True}, COLUMNS[0]]
        client = browser(FakeEngine(served=[table(columns, model=name)]))
        page = client.get("/try", params={"name": name}).text
        assert "<script>alert" not in page
        assert "<img" not in page
        assert "<svg" not in page
