"""The proof behind a front: texts that are made of the vocabulary, and answers that are compared row by row."""

import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from shiplift.runtime.admission.front_proving import front_cases
from shiplift.runtime.admission.front_questions import made_texts
from shiplift.runtime.base.errors import ExportFailed
from shiplift.runtime.model.tensors import dump_npz

WORDS = [f"w{at}" for at in range(40)]
TABLE = np.random.default_rng(0).normal(size=(len(WORDS) + 2, 3))


class Graph:
    """A session: the softmax of the mean of its tokens' rows, which `change` alters; padding is 1."""

    def __init__(self, change: Callable[[Any], Any]) -> None:
        self.change = change

    def get_outputs(self) -> list[Any]:
        return [SimpleNamespace(name="probabilities")]

    def run(self, _names: list[str], feeds: dict[str, Any]) -> list[Any]:
        mask = feeds["attention_mask"][..., None]
        scores = np.exp((TABLE[feeds["input_ids"]] * mask).sum(axis=1) / mask.sum(axis=1))
        return [self.change(scores / scores.sum(axis=1, keepdims=True)).astype(np.float32)]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    from tokenizers import Tokenizer, models, pre_tokenizers

    (tmp_path / "text").mkdir()
    vocabulary = {"[UNK]": 0, "[PAD]": 1} | {word: at + 2 for at, word in enumerate(WORDS)}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.save(str(tmp_path / "text" / "tokenizer.json"))
    settings = {
        "task": "text-classification",
        "inputs": ["input"],
        "labels": ["a", "b", "c"],
        "max_tokens": 64,
        "truncate": True,
        "types": False,
        "pad_id": 1,
        "mask_id": None,
        "unknown_id": 0,
        "strip": False,
        "lower": False,
        "prefix": "",
    }
    (tmp_path / "text" / "text.json").write_text(json.dumps(settings))
    write(tmp_path, [*WORDS, " ".join(WORDS)])
    return tmp_path / "text"


def write(to: Path, texts: list[str]) -> None:
    """The texts, of which the author gave the first two, with a right graph's answers."""
    ids = [[WORDS.index(word) + 2 for word in text.split()] for text in texts]
    each = [
        Graph(lambda scores: scores).run([], {"input_ids": np.array([row]), "attention_mask": np.ones((1, len(row)))})
        for row in ids
    ]
    scores = np.concatenate([answer[0] for answer in each])
    labels = np.array(["abc"[at] for at in scores.argmax(axis=1)], object).reshape(-1, 1)
    arrays = {
        "input/input": np.array(texts, object).reshape(-1, 1),
        "output/label": labels,
        "output/score": scores.max(axis=1, keepdims=True),
    }
    author = {name: array[:2] for name, array in arrays.items()}
    made = {f"made/{name}": array[2:] for name, array in arrays.items()}
    (to / "texts.npz").write_bytes(dump_npz(author | made))


def swapped(scores: Any) -> Any:
    """Only single words that are probably of the third class are answered otherwise."""
    return np.where(scores[:, 2:] > 0.6, scores[:, [2, 1, 0]], scores)


def test_a_graph_that_answers_as_the_original_passes(folder: Path) -> None:
    cases = front_cases(Graph(lambda scores: scores), folder)
    assert [case.inputs for case in cases] == ["texts", "each text alone"]
    assert all(case.max_abs < 1e-6 for case in cases)


def test_one_that_differs_a_little_in_a_few_texts_or_in_batches_is_refused(folder: Path) -> None:
    changes: dict[str, Callable[[Any], Any]] = {
        r"made rows \(alone\).*'score'": lambda scores: scores * 1.002,
        r"made rows \(in batches\).*'score'": lambda scores: 0.99 * scores + 0.01 * scores.mean(axis=0),
        r"made rows \(alone\).*'label'": swapped,
        r"made rows \(alone\).*raises": lambda scores: scores[:0],
    }
    for message, change in changes.items():
        with pytest.raises(ExportFailed, match=message):
            front_cases(Graph(change), folder)


def test_texts_are_made_of_all_words_and_what_is_odd_until_the_answers_are_large() -> None:
    class Original:
        def __init__(self, size: int) -> None:
            self.size = size

        def words(self) -> tuple[str, ...]:
            return tuple(WORDS)

        def answered_texts(self, texts: Any) -> Any:
            for text in texts:
                yield {"input": np.array([[text]], object)}, {"y": np.zeros((1, self.size), np.float32)}

    example = {"input": np.array([["a text"]], object)}
    made: Any = Original(1)
    arrays = made_texts(made, example)
    texts = arrays["made/input/input"].ravel().tolist()
    assert set(WORDS) <= {word for text in texts for word in text.split()}
    assert any("Zürich" in text for text in texts)
    assert len(arrays["made/output/y"]) == len(texts)
    large: Any = Original(1 << 20)
    assert len(made_texts(large, example)["made/input/input"]) < 3
