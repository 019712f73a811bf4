"""The child's conversation with its parent. Real sandboxes test its confinement."""

import io
import json
import os
import sys
from dataclasses import replace
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from shiplift.runtime.confinement import child
from shiplift.runtime.confinement.policy import CONVERT

REQUEST = {"arguments": {}, "memory_mb": 512, "cpu_s": 5, "file_mb": 5, "answer_s": 60}


def rehearse(flavor: str) -> None:
    sys.modules["needed_in_rehearsal"] = ModuleType(flavor)
    raise ValueError("nobody waits for this")


@pytest.fixture
def answer_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """What the child, unconfined, answers to these messages; its entry says which of two modules it has imported."""
    (tmp_path / "needed_always.py").touch()
    (tmp_path / "needed_by_sklearn.py").touch()
    entry = ModuleType("entry_of_test")
    entry.__dict__.update(
        PRELOAD=("needed_always",),
        PRELOAD_FOR={"sklearn": ("needed_by_sklearn", "not_installed_here")},
        imported=lambda: sorted(name for name in sys.modules if name.startswith("needed_")),
        rehearse=rehearse,
    )
    monkeypatch.setitem(sys.modules, "entry_of_test", entry)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(child, "confine", lambda *_, **__: SimpleNamespace(missing={}, landlock_abi=5))
    monkeypatch.setattr(child, "_limit", lambda *_: None)
    monkeypatch.chdir(tmp_path)

    def answer(*messages: dict[str, Any]) -> Any:
        monkeypatch.setattr(sys, "stdin", io.StringIO("".join(json.dumps(message) + "\n" for message in messages)))
        (_, set_up), (answers, end) = os.pipe(), os.pipe()
        policy = replace(CONVERT, write=(str(tmp_path),)).to_json()
        try:
            child.main(
                {"policy": policy, "entry": "entry_of_test:imported", "preload": True, "set_up": set_up, "answer": end}
            )
        finally:
            os.close(end)
            for name in ("needed_always", "needed_by_sklearn", "needed_in_rehearsal"):
                sys.modules.pop(name, None)
        with os.fdopen(answers) as file:
            return file.read()

    return answer


def test_what_the_expected_flavor_needs_is_imported_before_the_request(answer_of: Any) -> None:
    assert "needed_by_sklearn" not in answer_of(REQUEST)
    assert "needed_always" in answer_of(REQUEST)
    assert "needed_by_sklearn" in answer_of({"expect": "sklearn"}, REQUEST)
    assert "needed_by_sklearn" not in answer_of({"expect": "never heard of"}, REQUEST)


def test_a_rehearsal_comes_before_the_request_and_may_fail(answer_of: Any) -> None:
    assert "needed_in_rehearsal" not in answer_of({"expect": "sklearn", "rehearse": False}, REQUEST)
    assert "needed_in_rehearsal" in answer_of({"expect": "sklearn", "rehearse": True}, REQUEST)


def test_without_a_request_nothing_runs(answer_of: Any) -> None:
    assert answer_of({"expect": "sklearn"}) == answer_of() == ""
