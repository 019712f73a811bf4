"""Characters that a terminal, a log or a page would obey are shown instead, at every output."""

import io
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from markupsafe import Markup

from shiplift.pipelines.commands import app, console, edge
from shiplift.pipelines.commands.stack import status_tables
from shiplift.pipelines.daemons import dispatcher
from shiplift.pipelines.engines.answers import ModelStatus, StackStatus, UnderWay
from shiplift.pipelines.engines.argo.pod import messages
from shiplift.runtime.base.errors import ExportFailed
from shiplift.runtime.base.text import printable
from shiplift.runtime.gates.report import _shown
from shiplift.runtime.records.failure import Failure
from shiplift.runtime.records.release import Event
from shiplift.runtime.store.registry.rest import RestRegistry

HOSTILE = {
    "colour": ("a\x1b[31mred", r"a\x1b[31mred"),
    "title": ("\x1b]0;owned\x07", r"\x1b]0;owned\x07"),
    "C1": ("\x9b2J", r"\x9b2J"),
    "override": ("exe\u202egpj", r"exe\u202egpj"),
    "isolate": ("\u2066x\u2069", r"\u2066x\u2069"),
    "invisible": ("a\u200bb\ufeff", r"a\u200bb\ufeff"),
    "NUL": ("a\x00b", r"a\x00b"),
    "return": ("ok\rrefused", r"ok\x0drefused"),
    "separator": ("a\u2028b", r"a\u2028b"),
    "surrogate": ("a\ud800b", r"a\ud800b"),
    "tag": ("a\U000e0041", r"a\U000e0041"),
}
each = pytest.mark.parametrize(("text", "shown"), HOSTILE.values(), ids=HOSTILE)


@each
def test_what_would_be_obeyed_is_shown(text: str, shown: str) -> None:
    assert printable(text) == printable(text, lines=True) == shown


def test_plain_text_of_any_language_stays() -> None:
    for text in ("digits", "模型 Ziffern-ü", "p99 ≤ 5 ms ✓", "a\\x1b"):
        assert printable(text) == text
    assert (printable("a\nb\t"), printable("a\nb\t", lines=True)) == (r"a\x0ab\x09", "a\nb\t")


@given(st.text(), st.booleans(), st.integers(0, 20))
def test_it_is_one_line_idempotent_and_no_longer_than_allowed(text: str, lines: bool, limit: int) -> None:
    safe = printable(text, lines=lines, limit=limit)
    assert printable(safe, lines=lines, limit=limit) == safe
    assert not limit or len(safe) <= limit
    assert lines or len(safe.splitlines()) <= 1
    safe.encode()


def _from_app(text: str) -> None:
    with pytest.raises(SystemExit):
        app._fail(ExportFailed(f"its author raised {text}", do=text))


def _from_table(text: str) -> None:
    model = ModelStatus(model=text, champion=1, challenger=0, previous=0, latest=1, drift=text)
    release = UnderWay(release=text, model=text, version=1, stage=text, target=text)
    part: Any = {"name": text, "running": True, "pid": 1, "memory_mb": 1.0, "address": text}
    status_tables.show(StackStatus(home=text, running=True, parts=(part,), models=(model,), releasing=(release,)))


OUTPUTS: dict[str, Callable[[str], object]] = {
    "an error": _from_app,
    "a message": edge.say,
    "an event": lambda text: console._line(Event(stage="export", target=text, kind="progress", message=text)),
    "a table": _from_table,
    "the dispatcher's log": dispatcher.tell,
    "a pod's log": lambda text: messages.tell(Event(stage="export", kind="progress", message=text, done=0.5)),
    "a pod's message": messages.explain,
}


@each
@pytest.mark.parametrize("output", OUTPUTS.values(), ids=OUTPUTS)
def test_every_output_shows_it(
    output: Callable[[str], object],
    text: str,
    shown: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    monkeypatch.setattr(messages, "_MESSAGE", tmp_path / "message")
    for name in ("stderr", "stdout"):
        file = io.TextIOWrapper(io.BytesIO(), "utf-8")
        monkeypatch.setattr(console, name, console.SafeConsole(file=file, width=1000, highlight=False))
    monkeypatch.setattr(sys, "argv", ["shiplift"])
    output(text)
    written = "".join(capsys.readouterr())
    for name in ("stderr", "stdout"):
        shown_in: Any = getattr(console, name).file
        shown_in.flush()
        written += shown_in.buffer.getvalue().decode()
    if (tmp_path / "message").is_file():
        written += (tmp_path / "message").read_text()
    dropped = shown.replace(r"\x0d", "").replace(r"\x07", "")  # rich removes these two itself
    assert shown in written or dropped in written
    assert printable(written, lines=True) == written


@each
def test_errors_and_failures_and_pages_show_it(text: str, shown: str) -> None:
    assert shown in str(ExportFailed(text, do="-"))
    failure = Failure.of(ValueError(text))
    assert printable(failure.message) == failure.message
    json.dumps(failure.model_dump()).encode()
    assert _shown(text) == shown
    assert _shown(Markup(text)) == text


@each
def test_tags_show_it(text: str, shown: str) -> None:
    written: list[str] = []

    def answer(request: httpx.Request) -> httpx.Response:
        written.append(json.loads(request.content)["value"])
        return httpx.Response(200, json={})

    RestRegistry("http://registry", transport=httpx.MockTransport(answer)).tag("digits", 1, reason=text)
    assert written == [shown]
