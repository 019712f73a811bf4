"""The proof through a server: what it asks, what it finds, and what it must not mistake for a difference."""

import threading
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from shiplift.runtime.model.tensors import Arrays
from shiplift.runtime.proof.answers import Answers
from shiplift.runtime.proof.questions.question import Questions
from shiplift.runtime.proof.served import CLIENTS, Difference, JudgedForm, prove_served
from shiplift.runtime.proof.settings import Ask, Busy
from shiplift.runtime.records.proof import ServedProof

ROWS = np.random.default_rng(0).normal(size=(200, 4)).astype(np.float32)
LOSSLESS, LOSSY = JudgedForm(), JudgedForm(lossy=5e-2)


def scores(inputs: Arrays) -> Arrays:
    """The sum of each row, and whether it is positive."""
    total = inputs["x"].sum(axis=1, keepdims=True)
    return {"score": total, "label": (total > 0).astype(np.int64)}


RIGHT = Answers.of(scores({"x": ROWS}))
ASKED = [(Questions(inputs={"x": ROWS}, origins=("example",) * 100 + ("threshold:a",) * 100), RIGHT)]


class Server:
    """A server that knows how many requests it has at once, and answers as the test says."""

    def __init__(self, off: Callable[[Any, int, int], Any], label: Callable[[Any, int, int], Any]) -> None:
        self.off, self.label = off, label
        self.lock, self.running, self.most = threading.Lock(), 0, 0

    def __call__(self, inputs: Arrays) -> Arrays:
        with self.lock:
            self.running += 1
            self.most = max(self.most, self.running)
        time.sleep(0.0005)
        rows, running = len(inputs["x"]), self.running
        right = scores(inputs)
        with self.lock:
            self.running -= 1
        return {
            "score": right["score"] + np.float32(self.off(inputs["x"], rows, running)),
            "label": self.label(right["label"], rows, running),
        }


def server(off: Any = lambda *_: 0.0, label: Any = lambda right, *_: right) -> Server:
    return Server(off, label)


def proved(asked: Ask, form: JudgedForm = LOSSLESS, **options: Any) -> ServedProof | Difference:
    settings: dict[str, Any] = {"most": 8, "clock": lambda: 0.0} | options  # on a busy machine, too
    return prove_served(asked, ASKED, form, **settings)


def test_a_right_server_is_asked_every_row_in_every_setting() -> None:
    right = server()
    proof = proved(right)
    assert isinstance(proof, ServedProof)
    assert [(each.origin, each.rows) for each in proof.asked] == [("example", 100), ("threshold", 100)]
    assert [(each.name, each.rows) for each in proof.settings] == [
        ("alone", 200),
        ("in batches", 200),
        (f"to {CLIENTS} clients at once", 200),
    ]
    assert right.most > CLIENTS // 2
    assert str(proof) == "200 rows, 16 clients: alone (200), in batches (200), to 16 clients at once (200)"
    one = proved(server(), most=1)
    assert isinstance(one, ServedProof)
    assert [each.name for each in one.settings] == ["alone", f"to {CLIENTS} clients at once"]


def test_a_difference_is_found_in_the_setting_that_makes_it() -> None:
    crowd = f"to {CLIENTS} clients at once"
    for wrong, form, setting in (
        (server(off=lambda *_: 0.01), LOSSLESS, "alone"),
        (server(off=lambda _, rows, __: 0.01 * (rows > 5)), LOSSLESS, "in batches"),
        (server(off=lambda _, __, running: 0.01 * (running > 4)), LOSSLESS, crowd),
        (server(label=lambda right, rows, _: 1 - right if rows > 1 else right), LOSSLESS, "in batches"),
        (server(label=lambda right, *_: right.astype(np.float32)), LOSSLESS, "alone"),
        (server(off=lambda _, rows, __: 1.0 * (rows > 5)), LOSSY, "in batches"),
        (server(label=lambda right, _, running: 1 - right if running > 2 else right), LOSSY, crowd),
    ):
        difference = proved(wrong, form)
        assert isinstance(difference, Difference), setting
        assert difference.found.setting == setting
        assert difference.found.output in ("score", "label")
        assert difference.clients == (CLIENTS if setting == crowd else 1)
        assert difference.found.row not in difference.company
        assert 1 <= len(difference.company) < CLIENTS


def test_a_lossy_form_may_be_off_but_not_unsteady() -> None:
    for steady in (server(off=lambda *_: 0.3), server(off=lambda _, rows, __: 0.01 * (rows > 5))):
        proof = proved(steady, LOSSY)
        assert isinstance(proof, ServedProof)
        assert proof.worst is None


def test_a_lossy_form_answers_a_number_where_the_original_does() -> None:
    def overflows(x: Any, *_: int) -> Any:
        return np.where((x == ROWS[7]).all(axis=1, keepdims=True), np.nan, 0.01)

    difference = proved(server(off=overflows), LOSSY)
    assert isinstance(difference, Difference)
    assert (difference.found.row, difference.found.setting, difference.found.served) == (7, "alone", "answers nan")
    outputs = {"score": np.where(np.arange(len(ROWS))[:, None] == 7, np.nan, RIGHT.outputs["score"])}
    asked = [(ASKED[0][0], replace(RIGHT, outputs=RIGHT.outputs | outputs))]
    assert isinstance(prove_served(server(off=overflows), asked, LOSSY, most=8, clock=lambda: 0.0), ServedProof)


def test_a_lossy_form_refuses_no_row_that_the_original_answers() -> None:
    def refuses(inputs: Arrays) -> Arrays:
        if (inputs["x"] == ROWS[7]).all(axis=1).any():
            raise ValueError("out of range")
        return scores(inputs)

    difference = prove_served(refuses, ASKED, LOSSY, most=8, clock=lambda: 0.0)
    assert isinstance(difference, Difference)
    assert (difference.found.row, difference.found.setting) == (7, "alone")


def test_the_counterexample_is_the_row_that_was_asked() -> None:
    special = ROWS[123]
    difference = proved(server(off=lambda x, *_: 1.0 * (x == special).all(axis=1, keepdims=True)))
    assert isinstance(difference, Difference)
    assert (difference.of, difference.found.row, difference.found.origin) == (0, 123, "threshold:a")


def test_a_row_that_the_original_refuses_must_be_refused() -> None:
    def refuses(inputs: Arrays) -> Arrays:
        if (inputs["x"] == ROWS[7]).all(axis=1).any():
            raise ValueError("unknown category")
        return scores(inputs)

    errors = tuple("ValueError: unknown category" if row == 7 else "" for row in range(len(ROWS)))
    asked = [(ASKED[0][0], Answers(outputs=RIGHT.outputs, errors=errors))]
    assert isinstance(prove_served(refuses, asked, LOSSLESS, most=8, clock=lambda: 0.0), ServedProof)
    found = prove_served(scores, asked, LOSSLESS, most=8, clock=lambda: 0.0)
    assert isinstance(found, Difference)
    assert (found.found.row, found.found.served) == (7, "answers")


def test_what_a_slow_server_leaves_out_is_said() -> None:
    now = [0.0]

    def slow(inputs: Arrays) -> Arrays:
        now[0] += 0.1
        return scores(inputs)

    proof = prove_served(slow, ASKED, LOSSLESS, most=1, seconds=3.0, clock=lambda: now[0])
    assert isinstance(proof, ServedProof)
    alone = proof.settings[0].rows
    assert 1 <= alone <= 16
    assert proof.left_out[0] == f"{200 - alone} rows alone: the time was up"


def test_a_slow_server_never_has_more_rows_at_once_than_it_answers_within_the_patience() -> None:
    for seconds, patience, at_once in ((10.0, 30.0, 3), (10.0, 22.5, 2), (10.0, 15.0, 1), (40.0, 30.0, 1)):
        now, most = [0.0], [0]

        def slow(inputs: Arrays, seconds: float = seconds, now: Any = now, most: Any = most) -> Arrays:
            now[0] += seconds * len(inputs["x"])
            most[0] = max(most[0], len(inputs["x"]))
            return scores(inputs)

        proof = prove_served(slow, ASKED, LOSSLESS, most=8, patience=patience, clock=partial(now.__getitem__, 0))
        assert isinstance(proof, ServedProof)
        assert (proof.clients, most[0], proof.settings[0].rows, proof.budget_s) == (at_once, at_once, 1, 3.0)
        if at_once == 1:
            assert proof.left_out[-1] == f"all rows among others: each takes {seconds:.3g} s"
        else:
            assert proof.settings[-1].name == f"to {at_once} clients at once"


def test_a_server_that_takes_no_more_requests_answers_nothing_wrong() -> None:
    right = server()

    def full(inputs: Arrays) -> Arrays:
        answers = right(inputs)
        if len(inputs["x"]) > 1 or (inputs["x"] == ROWS[7]).all():
            raise Busy("Exceeds maximum queue size")
        return answers

    proof = proved(full)
    assert isinstance(proof, ServedProof)
    crowd = f"to {CLIENTS} clients at once"
    assert [(each.name, each.rows) for each in proof.settings] == [("alone", 199), ("in batches", 0), (crowd, 199)]
    why = "the server took no more requests"
    assert proof.left_out == (f"1 rows alone: {why}", f"200 rows in batches: {why}", f"1 rows {crowd}: {why}")


def test_answers_of_different_lengths_are_compared_in_full() -> None:
    def features(inputs: Arrays) -> Arrays:
        return {"features": np.ones((1, len(str(inputs["text"][0, 0])), 2), np.float32)}

    texts = np.array([["a"], ["été à Zürich"]], dtype=object)
    longest = [
        np.pad(features({"text": texts[[row]]})["features"], [(0, 0), (0, 12 - size), (0, 0)])
        for row, size in ((0, 1), (1, 12))
    ]
    asked = [
        (Questions(inputs={"text": texts[[row]]}, origins=("example",)), Answers.of({"features": longest[row]}))
        for row in range(2)
    ]
    assert isinstance(prove_served(features, asked, LOSSLESS, most=8, clock=lambda: 0.0), ServedProof)

    def shorter(inputs: Arrays) -> Arrays:
        return {
            "features": features(inputs)["features"][:, :-1]
            if len(str(inputs["text"])) > 9
            else features(inputs)["features"]
        }

    found = prove_served(shorter, asked, LOSSLESS, most=8, clock=lambda: 0.0)
    assert isinstance(found, Difference)
    assert found.of == 1
