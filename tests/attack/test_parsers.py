"""Parsers of foreign bytes, fed with anything: they answer, or refuse with the error that they name.

Few examples every time; HYPOTHESIS_PROFILE=million tries a million of each.
"""

import json
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from shiplift.pipelines.triggers import pushes, signatures
from shiplift.pipelines.triggers.intake import WebhookBody
from shiplift.runtime.base.errors import ShipliftError
from shiplift.runtime.confinement.messages import MessageReceiver
from shiplift.runtime.guest.fronts.encoded import BadImage, scans_of
from shiplift.runtime.guest.fronts.pixel_front import decoded
from shiplift.runtime.guest.python.wire import BadMessage, Reader, pack
from shiplift.runtime.model import contracts
from shiplift.runtime.serving.openai import messages
from shiplift.runtime.spec import document
from tests.unit.runtime.guest.fronts.test_encoded import SETTINGS, saved

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=12), inner, max_size=4),
    max_leaves=12,
)
BYTES = st.binary(max_size=300) | JSON.map(lambda value: json.dumps(value).encode())
SPECS = ("model: a\n", "targets: [{name: a}]\nslo: {p99_ms: 5}\n", "quantization: {timeout_s: 5}\n", "a: &a [*a]\n")
MODELS = (
    "flavors: {onnx: {data: model.onnx}}\nsignature: {inputs: '[]', outputs: '[]'}\n",
    "flavors: {python_function: {}}\nsignature: null\n",
)
HEADERS = st.dictionaries(
    st.sampled_from(
        ["x-mlflow-signature", "x-mlflow-delivery-id", "x-mlflow-timestamp", "x-hub-signature-256", "x-gitlab-token"]
    ),
    st.text(max_size=40),
)
WHOLE = (saved(progressive=True), saved("PNG"))


@st.composite
def damaged(draw: st.DrawFn, *whole: bytes) -> bytes:
    """One of these, with some bytes replaced, removed and doubled."""
    body = bytearray(draw(st.sampled_from(whole)))
    for _ in range(draw(st.integers(0, 6))):
        at = draw(st.integers(0, max(0, len(body) - 1)))
        body[at : at + draw(st.integers(0, 4))] = draw(st.binary(max_size=4))
    return bytes(body)


def texts(*whole: str) -> st.SearchStrategy[str]:
    """Text like these, or any."""
    return damaged(*(text.encode() for text in whole)).map(lambda body: body.decode(errors="replace")) | st.text()


@given(texts(*SPECS))
def test_a_spec(text: str) -> None:
    with suppress(ShipliftError):
        document.parse(text)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(texts(*MODELS))
def test_a_contract_and_its_mlmodel(tmp_path: Path, text: str) -> None:
    (tmp_path / contracts.METADATA).write_text(text, errors="replace")
    with suppress(ShipliftError):
        contracts.read_model(tmp_path)


@given(HEADERS, BYTES)
def test_a_webhook(headers: dict[str, str], body: bytes) -> None:
    now = time.time()
    assert signatures.check_mlflow(("secret",), headers, body, now=now)
    assert signatures.check_github(("secret",), headers, body)
    assert signatures.check_gitlab(("secret",), headers, body, now=now)
    for host in ("github", "gitlab"):
        pushes.read_push(host, body, lambda *_: None)
    with suppress(ValueError):
        WebhookBody.model_validate_json(body)


@given(st.sampled_from([messages.CompletionRequest, messages.ChatRequest]), BYTES)
def test_a_request_of_the_front_for_openai_s_clients(kind: Any, body: bytes) -> None:
    with suppress(messages.RequestProblem):
        messages.read(kind, body)


@given(damaged(*WHOLE))
def test_an_image(body: bytes) -> None:
    for parse in (scans_of, lambda image: decoded(image, SETTINGS)):
        with suppress(BadImage):
            parse(body)


@given(damaged(pack(), pack(error="x"), pack({}, other=1)) | BYTES)
def test_a_message_between_host_and_worker(body: bytes) -> None:
    reader, at = Reader(), 0
    with suppress(BadMessage):
        while reader.missing and at < len(body):
            size = reader.missing
            reader.take(body[at : at + size])
            at += size
        reader.message()


@given(st.lists(BYTES))
def test_what_a_sandbox_sends(pieces: list[bytes]) -> None:
    received = MessageReceiver()
    for piece in pieces:
        received.take(piece + b"\n")
    assert all(isinstance(error, ShipliftError) for error in received.errors)
