"""What users of streamed answers wait for, from when each piece came."""

from pathlib import Path

import numpy as np
import pytest

from shiplift.runtime.measure.streaming import Answered, StreamingClient, _requests, streaming_of
from shiplift.runtime.model.generation.signature import SIGNATURE
from shiplift.runtime.serving import streaming


def test_the_first_token_the_pauses_and_the_rate_are_told_apart() -> None:
    answers = [
        Answered(sent=0.0, pieces=((0.5, 1), (0.6, 1), (0.8, 2))),
        Answered(sent=1.0, pieces=((1.1, 1), (1.3, 1))),
    ]
    arrivals = [piece for answer in answers for piece in answer.pieces] + [(2.5, 100)]
    seen = streaming_of(answers, arrivals, 0.0, 2.0)
    assert seen.ttft_p50_ms == pytest.approx(100)
    assert seen.ttft_p99_ms == pytest.approx(500)
    assert seen.inter_token_p50_ms == pytest.approx(100)
    assert seen.inter_token_p99_ms == pytest.approx(200)
    assert seen.tokens_per_s == 3  # those that came later do not count
    assert answers[0].whole_s == pytest.approx(0.8)


def test_requests_are_read_as_they_were_written(tmp_path: Path) -> None:
    prompt = {"prompt": np.array(["ä"], object), "max_tokens": np.array([4], np.int32)}
    (asked,) = _requests(StreamingClient().write_requests(tmp_path / "r.json", SIGNATURE, [prompt]))
    assert {name: (array.tolist(), array.shape) for name, array in asked.items()} == {
        "prompt": ([["ä"]], (1, 1)), "max_tokens": ([[4]], (1, 1)),
    }  # fmt: skip
    request = streaming.request_of("m", SIGNATURE, asked)
    assert [(entry.name, list(entry.shape)) for entry in request.inputs] == [("prompt", [1, 1]), ("max_tokens", [1, 1])]
    assert list(request.raw_input_contents) == [b"\x02\x00\x00\x00" + "ä".encode(), b"\x04\x00\x00\x00"]


def test_pieces_are_put_together() -> None:
    def piece(text: bytes, ended: bytes, tokens: int) -> dict[str, np.ndarray]:
        texts = {"text": text, "finish_reason": ended}
        arrays = {name: np.array([[value]], object) for name, value in texts.items()}
        return {**arrays, "tokens": np.array([[tokens]], np.int32)}

    answer = streaming.whole(SIGNATURE, [piece(b"a", b"", 1), piece(b"b", b"", 2), piece(b"", b"length", 1)])
    assert {name: array.item() for name, array in answer.items()} == {
        "text": b"ab", "finish_reason": b"length", "tokens": 4,
    }  # fmt: skip
