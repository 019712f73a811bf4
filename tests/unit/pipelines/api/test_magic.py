"""`%shiplift` in a notebook, whose shell is asked for nothing but to register it."""

from collections.abc import Callable
from typing import Any

import pytest

import shiplift
from shiplift.pipelines.api import magic
from shiplift.runtime.base.errors import StackDown


class Shell:
    """Keeps what is registered with it."""

    def __init__(self) -> None:
        self.line: dict[str, Callable[[str], Any]] = {}

    def register_magic_function(self, function: Callable[[str], Any], kind: str, name: str) -> None:
        assert kind == "line"
        self.line[name] = function


def test_a_notebook_shows_the_releases_of_a_model_or_of_all(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str | None] = []
    monkeypatch.setattr(magic, "releases", asked.append)
    shell = Shell()
    shiplift.load_ipython_extension(shell)
    for line in ("", " digits "):
        shell.line["shiplift"](line)
    assert asked == [None, "digits"]


def test_why_there_are_none_is_told_without_a_traceback(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def down(model: str | None) -> None:
        raise StackDown(f"no stack to ask for {model}", do="Run `shiplift up`.")

    monkeypatch.setattr(magic, "releases", down)
    assert magic.shiplift("digits") is None
    assert "no stack to ask for digits. Run `shiplift up`." in capsys.readouterr().err
