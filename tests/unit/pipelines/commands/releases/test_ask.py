"""`shiplift ask`: what it prints, how it ends, and which form it asks."""

import json
import sys
from typing import Any

import pytest

from shiplift.pipelines.commands import edge
from shiplift.pipelines.commands.app import main
from shiplift.pipelines.engines.asking import ask_again
from shiplift.runtime.base.errors import NotFound, UsageError
from shiplift.runtime.records.asked import AskedAgain, RowAsked
from shiplift.runtime.records.verdict import Packages
from tests.unit.examples import package

ROW = RowAsked(row=12, origin="range", inputs='{"inputs": []}', recorded='{"y": 1}', original='{"y": 1}', served="")
SAME = AskedAgain(model="digits", version=3, form="fp32 on ONNX Runtime", judge="mlflow.pyfunc", rows=(ROW,))
OFF = SAME.model_copy(update={"rows": (ROW.model_copy(update={"served": '{"y": 2}', "difference": "2 is not 1"}),)})


class Asked:
    """An engine that answers, and keeps what it was asked."""

    def __init__(self, answer: AskedAgain) -> None:
        self.answer = answer
        self.asked: tuple[Any, ...] = ()

    def ask(self, *asked: Any) -> AskedAgain:
        self.asked = asked
        return self.answer

    def ask_given(self, *asked: Any) -> AskedAgain:
        return self.ask(*asked)


def run(monkeypatch: pytest.MonkeyPatch, answer: AskedAgain, *words: str) -> tuple[int, Asked]:
    engine = Asked(answer)
    monkeypatch.setattr(edge, "engine", lambda *_: engine)
    monkeypatch.setattr(sys, "argv", ["shiplift", "ask", *words])
    with pytest.raises(SystemExit) as ended:
        main()
    return int(ended.value.code or 0), engine


def test_a_difference_is_an_exit_code_and_json_says_everything(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    code, engine = run(monkeypatch, SAME, "digits/3", "--row", "12", "--row", "4", "--clients", "16")
    assert (code, engine.asked) == (0, ("digits", 3, "", [12, 4], 16))
    shown = capsys.readouterr().out
    assert "row 12 (range)" in shown
    assert "difference" not in shown
    code, _ = run(monkeypatch, OFF, "digits/3", "--row", "12", "--json")
    assert code == 43
    assert AskedAgain.model_validate(json.loads(capsys.readouterr().out)) == OFF
    assert run(monkeypatch, OFF, "digits/3")[0] == 64
    assert run(monkeypatch, OFF, "digits", "--row", "1")[0] == 64


def test_a_row_itself_is_asked_of_the_model_alone(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    alone = SAME.model_copy(update={"form": ""})
    code, engine = run(monkeypatch, alone, "digits/3", "--inputs", '{"x": [1, -Infinity]}')
    assert (code, engine.asked) == (0, ("digits", 3, "", {"x": [1, -float("inf")]}, 1))
    assert "digits version 3; the original now: mlflow.pyfunc" in capsys.readouterr().out
    _, engine = run(monkeypatch, SAME, "digits/3", "--inputs", '{"x": 1}', "--form", "onnxruntime-fp32")
    assert engine.asked == ("digits", 3, "onnxruntime-fp32", {"x": 1}, 1)
    for wrong in (["--inputs", "[1]"], ["--inputs", "{"], ["--inputs", "{}", "--row", "1"], []):
        assert run(monkeypatch, alone, "digits/3", *wrong)[0] == 64


class Past:
    """A release that ended with these records."""

    def __init__(self, packages: Packages | None) -> None:
        self.packages = packages
        self.package = packages.packages[0] if packages else None

    def last(self, kind: type[Any]) -> Any:
        return self.packages if kind is Packages else None


def test_a_release_without_the_form_or_without_rows_says_so() -> None:
    built = Packages(target="local-cpu", packages=(package(),), checks=())
    past: Any = Past(built)
    with pytest.raises(UsageError, match=r"has no form 'trees-fp32'; it has onnxruntime-fp32"):
        ask_again(None, past, "digits/3", "trees-fp32", [0], 1)  # type: ignore[arg-type]
    for each in (past, Past(None)):
        with pytest.raises(NotFound, match="ended before it had a package"):
            ask_again(None, each, "digits/3", "", [0], 1)  # type: ignore[arg-type]
