"""What keeps a model apart after its process has ended: pauses, a file for whoever watches, and suspected requests."""

import json
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from shiplift.runtime.guest.python import hosted
from shiplift.runtime.guest.python.host import Died, Host, ModelFailed, Paused, Raised, TookTooLong
from shiplift.runtime.guest.python.hosted import HostedModel
from shiplift.runtime.guest.python.keeper import HEALTHY_S, LONGEST_PAUSE_S, Keeper
from shiplift.runtime.serving.machine.quarantine import Crashed


class Clock:
    now = time.time()

    def __call__(self) -> float:
        return self.now


def keeper(folder: Path, clock: Clock) -> Keeper:
    return Keeper("m", 3, folder=folder / "states", clock=clock)


def test_pauses_double_up_to_five_minutes_and_the_file_says_why(tmp_path: Path) -> None:
    clock = Clock()
    kept = keeper(tmp_path, clock)
    assert kept.refusal() == ""
    for crashes in range(1, 13):
        kept.crashed("died of SIGSEGV", "one\nlast line")
        pause = min(2.0 ** (crashes - 1), LONGEST_PAUSE_S)
        assert kept.refusal() == f"the model's worker died of SIGSEGV: it starts again in {pause:.0f} s"
        found = Crashed.model_validate_json((tmp_path / "states" / "m-3.json").read_bytes())
        assert (found.model, found.version, found.crashes, found.pause_s) == ("m", 3, crashes, pause)
        assert ("quarantined" in found.finding(clock.now)) == (crashes >= 3)
        clock.now += pause + 0.1
        assert kept.refusal() == ""
    assert found.lines == "one last line"
    clock.now += HEALTHY_S + 1
    kept.crashed("exit code 1")
    assert json.loads((tmp_path / "states" / "m-3.json").read_text())["crashes"] == 1
    kept.forget()
    assert not (tmp_path / "states" / "m-3.json").exists()


def test_instances_count_and_pause_together(tmp_path: Path) -> None:
    clock = Clock()
    one, other = keeper(tmp_path, clock), keeper(tmp_path, clock)
    one.crashed("died")
    assert one.refusal() == other.refusal() == "the model's worker died: it starts again in 1 s"
    clock.now += 1.1
    assert one.refusal() == other.refusal() == ""
    other.crashed("died again")
    assert one.refusal() == other.refusal() == "the model's worker died again: it starts again in 2 s"
    one.forget()


def test_a_pause_that_nobody_could_have_noted_holds_nobody_up(tmp_path: Path) -> None:
    clock = Clock()
    kept = keeper(tmp_path, clock)
    (tmp_path / "states").mkdir()
    for at, pause in ((clock.now, 1e9), (clock.now, "x"), (None, 1), (1e300, LONGEST_PAUSE_S)):
        (tmp_path / "states" / "m-3.json").write_text(json.dumps({"at": at, "pause_s": pause, "why": "x"}))
        assert kept.left_s() <= LONGEST_PAUSE_S


@pytest.mark.parametrize("content", ["", "[]", "{", '{"crashes": 1'])
def test_a_file_that_makes_no_sense_is_written_again(tmp_path: Path, content: str) -> None:
    kept = keeper(tmp_path, Clock())
    (tmp_path / "states").mkdir()
    (tmp_path / "states" / "m-3.json").write_text(content)
    kept.crashed("died")
    assert json.loads((tmp_path / "states" / "m-3.json").read_text())["crashes"] == 1


def test_without_room_for_files_the_pauses_hold(tmp_path: Path) -> None:
    (tmp_path / "states").write_text("no folder")
    kept = keeper(tmp_path, Clock())
    kept.crashed("died")
    assert "it starts again in 1 s" in kept.refusal()


# --- requests --------------------------------------------------------------------------------------------------------


def asked(value: float) -> dict[str, Any]:
    return {"x": np.array([value])}


@pytest.fixture
def model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> HostedModel:
    """A hosted model whose process is not started."""
    monkeypatch.setattr(hosted, "Keeper", lambda *_: keeper(tmp_path, Clock()))
    monkeypatch.setattr(Host, "start", lambda _: None)
    return HostedModel({"model_name": "m", "model_version": "3"}, {}, tmp_path, tmp_path, {}, memory_mb=100)


def test_a_model_whose_server_process_starts_again_in_a_pause_waits_for_its_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock()
    monkeypatch.setattr(hosted, "Keeper", lambda *_: keeper(tmp_path, clock))
    keeper(tmp_path, clock).crashed("died")
    made = HostedModel({"model_name": "m", "model_version": "3"}, {}, tmp_path, tmp_path, {}, memory_mb=100)
    with pytest.raises(Paused, match="it starts again in 1 s"):
        made.host.start()


@pytest.mark.parametrize("error", [Died("it died"), TookTooLong("it took too long")])
def test_the_request_that_the_process_dies_of_is_found_and_refused(model: HostedModel, error: ModelFailed) -> None:
    batches = []

    def ask(requests: Any) -> list[float]:
        batches.append([each["x"][0] for each in requests])
        if 13 in batches[-1]:
            raise error
        return batches[-1]

    answers = [model.answers([asked(value) for value in (1, 13, 2)], ask) for _ in range(3)]
    assert answers[0] == [error] * 3
    assert answers[1] == [1, error, 2]
    assert "died each time it ran this request" in str(answers[2][1])
    assert answers[2][::2] == [1, 2]
    assert batches == [[1, 13, 2], [1], [13], [2], [1, 2]]


def test_equal_requests_in_a_batch_are_suspected_once(model: HostedModel) -> None:
    def ask(requests: Any) -> list[float]:
        if any(each["x"][0] == 13 for each in requests):
            raise Died("it died")
        return [each["x"][0] for each in requests]

    model.answers([asked(value) for value in (1, 13, 1, 1)], ask)
    assert [str(each) for each in model.answers([asked(1), asked(13), asked(1)], ask)] == ["1", "it died", "1"]


def test_an_error_of_one_request_fails_it_alone_and_blames_nobody(model: HostedModel) -> None:
    def ask(requests: Any) -> list[float]:
        if any(each["x"][0] == 13 for each in requests):
            raise Raised("no")
        return [each["x"][0] for each in requests]

    for _ in range(3):
        one, failed, other = model.answers([asked(value) for value in (1, 13, 2)], ask)
        assert (one, str(failed), other) == (1, "no", 2)


def test_a_pause_blames_nobody(model: HostedModel) -> None:
    def ask(_requests: Any) -> list[float]:
        raise Paused("later")

    for _ in range(3):
        assert [str(each) for each in model.answers([asked(1)], ask)] == ["later"]


def test_a_request_is_known_by_its_tensors(tmp_path: Path) -> None:
    kept = keeper(tmp_path, Clock())
    texts = np.array([b"a", b"b"], dtype=object)
    variants: list[dict[str, Any]] = [
        {"x": np.zeros(2)},
        {"y": np.zeros(2)},
        {"x": np.zeros(2, np.float32)},
        {"x": np.zeros((2, 1))},
        {"x": texts},
        {"x": texts[:1]},
    ]
    assert len({kept.digest(each) for each in variants}) == len(variants)
    about = [{"": np.array([each], dtype=object), "x": np.zeros(2)} for each in ("sequence 1", "sequence 2")]
    assert kept.digest(about[0]) == kept.digest(about[1])
