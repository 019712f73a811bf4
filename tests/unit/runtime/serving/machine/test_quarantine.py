"""What is read of the crashes that a server notes, however it writes them."""

import os
from pathlib import Path

import pytest

from shiplift.runtime.serving.machine import quarantine
from shiplift.runtime.serving.machine.quarantine import Crashed, crashed

THIRD = Crashed(model="m", version=2, crashes=3, at=100.0, pause_s=4, why="died of SIGFPE", lines="  lines\x1b[31m")


def test_a_model_is_quarantined_from_its_third_crash_until_it_was_healthy_for_an_hour() -> None:
    said = "its worker died of SIGFPE; it last said: lines\\x1b[31m"
    assert THIRD.finding(101.5) == f"quarantined: crashed 3 times, it starts again in 2 s: {said}"
    assert THIRD.finding(110.0) == f"quarantined: crashed 3 times, it was started again: {said}"
    assert THIRD.finding(100.0 + 3601) == ""
    assert THIRD.model_copy(update={"crashes": 2}).finding(101.0) == ""


def test_only_plain_files_that_make_sense_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quarantine, "FOLDER", str(tmp_path / "states").removeprefix("/"))
    assert crashed(os.getpid()) == ()
    folder, secret = tmp_path / "states", tmp_path / "secret.json"
    folder.mkdir()
    secret.write_text(THIRD.model_dump_json())
    (folder / "link.json").symlink_to(secret)
    (folder / "torn.json").write_text('{"model": "m"')
    (folder / "long.json").write_text(THIRD.model_copy(update={"lines": "x" * 9000}).model_dump_json())
    (folder / "folder.json").mkdir()
    os.mkfifo(folder / "pipe.json")
    (folder / "m-2.new").write_text(THIRD.model_dump_json())
    assert crashed(os.getpid()) == ()
    (folder / "m-2.json").write_text(THIRD.model_dump_json())
    assert crashed(os.getpid()) == (THIRD,)


def test_a_home_remembers_the_versions_that_were_quarantined(tmp_path: Path) -> None:
    quarantine.note_quarantined(tmp_path, "a model", 2, THIRD.model_copy(update={"crashes": 2}))
    assert quarantine.quarantined(tmp_path, "a model", 2) == ""
    quarantine.note_quarantined(tmp_path, "a model", 2, THIRD)
    quarantine.note_quarantined(tmp_path, "a model", 3, THIRD.model_copy(update={"crashes": 5, "why": "was ended"}))
    told = quarantine.quarantined(tmp_path, "a model", 2)
    assert told.startswith("it was quarantined: it crashed 3 times, the last time on 1970-01-01")
    assert told.endswith("its worker died of SIGFPE; it last said: lines\\x1b[31m")
    assert "crashed 5 times" in quarantine.quarantined(tmp_path, "a model", 3)
    assert quarantine.quarantined(tmp_path, "a model", 4) == quarantine.quarantined(tmp_path, "other", 2) == ""
