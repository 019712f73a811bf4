"""What is around a graph that takes tokens: padded ids from texts, and labels, entities and tokens from scores."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.huggingface import tokenizer

pytest.importorskip("tokenizers")

from shiplift.runtime.guest.fronts.text_front import BadText, TextFront


def front(folder: Path, task: str = "text-classification", **settings: Any) -> Any:
    tokenizer().backend_tokenizer.save(str(folder / "tokenizer.json"))
    defaults = {
        "task": task,
        "labels": ["O", "B-PER"],
        "max_tokens": 12,
        "truncate": False,
        "pad_id": 0,
        "mask_id": 4,
        "unknown_id": 1,
        "strip": False,
        "lower": False,
        "prefix": "",
        "inputs": ["input"],
        "types": False,
    }
    (folder / "text.json").write_text(json.dumps(defaults | settings))
    return TextFront(folder)


class PanicException(BaseException):
    """As PyO3 raises it: no `Exception`."""


@pytest.mark.parametrize("panics", [True, False])
def test_a_tokenizer_that_panics_refuses_the_text_alone(tmp_path: Path, panics: bool) -> None:
    class Panicking:
        def encode_batch(self, _: Any) -> Any:
            raise (PanicException if panics else KeyboardInterrupt)("called `Option::unwrap()` on a `None` value")

    around = front(tmp_path)
    around.tokenizer = Panicking()
    with pytest.raises(BadText if panics else KeyboardInterrupt, match=r"Option::unwrap"):
        around.encode(["a film"])


def test_texts_become_padded_ids_and_a_mask(tmp_path: Path) -> None:
    around = front(tmp_path)
    feeds = around.feeds(around.encode(["a film", "a"]))
    assert feeds["attention_mask"].tolist() == [[1, 1, 1, 1], [1, 1, 1, 0]]
    assert feeds["input_ids"][1].tolist()[-2:] == [3, 0]
    assert feeds["input_ids"].dtype == np.int64


def test_the_label_of_the_highest_probability_is_answered(tmp_path: Path) -> None:
    scores = np.array([[0.2, 0.8], [0.6, 0.4]], np.float32)
    answers = front(tmp_path).run([b"a", "b"], lambda feeds: {"probabilities": scores})
    assert answers["label"].tolist() == [["B-PER"], ["O"]]
    np.testing.assert_allclose(answers["score"], [[0.8], [0.6]], rtol=1e-6)


def test_entities_say_where_they_are_in_the_text(tmp_path: Path) -> None:
    def graph(feeds: Any) -> Any:
        person = (np.arange(feeds["input_ids"].shape[1]) == 1).astype(np.float32)
        return {"probabilities": np.stack([1 - person, person], axis=-1)[None]}

    answers = front(tmp_path, "token-classification").run(
        [
            "Anna lives",
        ],
        graph,
    )
    assert answers["labels"].tolist() == [["B-PER"]]
    (entity,) = json.loads(answers["entities"][0, 0])
    assert entity == {"entity": "B-PER", "score": 1.0, "index": 1, "word": "anna", "start": 0, "end": 4}


def test_a_request_s_answer_has_its_own_length_whatever_else_is_in_the_batch(tmp_path: Path) -> None:
    around = front(tmp_path, "feature-extraction")
    requests = [(texts, around.encode(texts)) for texts in (["a"], ["a film", "a"], ["a"])]
    outputs = {"features": np.ones((4, 4, 2), np.float32)}
    shapes = [answers["features"].shape for answers in around.split(requests, outputs)]
    assert shapes == [(1, 3, 2), (2, 4, 2), (1, 3, 2)]


def test_a_special_token_may_be_the_best_for_a_mask(tmp_path: Path) -> None:
    graph = {"scores": np.array([[0.5, 0.25]]), "tokens": np.array([[2, 19]])}
    answers = front(tmp_path, "fill-mask").run(["a [MASK]"], lambda feeds: graph)
    assert answers["token"].tolist() == [["[CLS]"]]
    first, second = json.loads(answers["candidates"][0, 0])
    assert first == {"token": 2, "token_str": "[CLS]", "score": 0.5}
    assert second["score"] == 0.25


@pytest.mark.parametrize(
    ("item", "settings", "reason"),
    [
        (b"\xff\xfe", {}, "not UTF-8: byte 0 is 0xff"),
        ("\ud800", {}, "not UTF-8"),
        (b"a" * (1 << 20), {}, "has 1048576 bytes, the limit is 262144"),
        ("a " * 20, {}, "has 22 tokens, the model takes 12"),
        ("a film", {"task": "fill-mask"}, r"has 0 mask tokens, and needs exactly one \[MASK\]"),
        ("[MASK] [MASK]", {"task": "fill-mask"}, "has 2 mask tokens"),
    ],
)
def test_a_text_that_the_model_cannot_take_is_refused_with_the_reason(
    tmp_path: Path, item: Any, settings: dict[str, Any], reason: str
) -> None:
    with pytest.raises(BadText, match=reason):
        front(tmp_path, **settings).run([item], lambda feeds: {})


def test_an_empty_text_is_a_text(tmp_path: Path) -> None:
    around = front(tmp_path)
    assert around.feeds(around.encode(around.read([b""])))["input_ids"].tolist() == [[2, 3]]


def test_a_pair_becomes_one_sequence_whose_types_say_from_which_text_a_token_is(tmp_path: Path) -> None:
    around = front(tmp_path, "text-pair-classification", inputs=["text", "text_pair"], types=True)
    inputs = {"text_pair": np.array([[b"a film"], [b""]], object), "text": np.array([[b"a"], [b"a film"]], object)}
    texts = around.read(around.samples(inputs))
    assert texts == [("a", "a film"), "a film"]  # transformers takes an empty second text for none
    feeds = around.feeds(around.encode(texts))
    assert feeds["token_type_ids"].tolist() == [[0, 0, 0, 1, 1, 1], [0, 0, 0, 0, 0, 0]]
    assert feeds["attention_mask"].tolist() == [[1, 1, 1, 1, 1, 1], [1, 1, 1, 1, 0, 0]]
    assert feeds["token_type_ids"].dtype == np.int64


def test_the_limits_hold_for_both_texts_of_a_pair(tmp_path: Path) -> None:
    around = front(tmp_path, "text-pair-classification", inputs=["text", "text_pair"], types=True)
    for pair, reason in (((b"a", b"\xff"), "not UTF-8"), ((b"a " * 9, b"a " * 9), "both texts have 21 tokens")):
        with pytest.raises(BadText, match=reason):
            around.run([pair], lambda feeds: {})


def test_a_longer_text_is_cut_where_the_pipeline_cuts_it(tmp_path: Path) -> None:
    (encoding,) = front(tmp_path, truncate=True).encode(["a " * 20])
    assert len(encoding.ids) == 12
    assert encoding.ids[-1] == 3  # with its last special token


def test_a_sentence_encoder_s_text_is_stripped_lowered_and_prefixed(tmp_path: Path) -> None:
    assert front(tmp_path, strip=True, lower=True, prefix="query: ").read([b"  Paris \n"]) == ["query: paris"]
