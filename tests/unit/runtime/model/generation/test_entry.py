"""When two engines count as generating the same: no token differs, unless the original was undecided about it."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("tokenizers", reason="the `transformers` extra is not installed")

from shiplift.runtime.base.errors import ExportFailed
from shiplift.runtime.model.generation import entry
from tests.unit.runtime.guest.generation.test_front import front, ids

CLOSE = entry.CLOSE_CALL / 2


def expected(text: str, margin: float = 1.0) -> dict[str, Any]:
    tokens = ids(text)
    return {"tokens": tokens, "margins": [margin] * len(tokens), "text": text}


@pytest.mark.parametrize(
    ("original", "other", "problem"),
    [
        (expected("abc"), "abc", ""),
        (expected("abc"), "abd", "token 3 after prompt 2 is {d}, the original's is {c}, by a margin of 1"),
        (expected("abc"), "ab", "prompt 2 is answered with 2 tokens, the original generates 3"),
        (expected("abc"), "abcd", "prompt 2 is answered with 4 tokens, the original generates 3"),
        (expected("abc", CLOSE), "abd", ""),  # from there on, both continue different texts
        (expected("abc", CLOSE), "ab", "prompt 2 is answered with 2 tokens, the original generates 3"),
        (expected("abc") | {"text": "ABC"}, "abc", "the text after prompt 2 is 'abc', the original's is 'ABC'"),
    ],
)
def test_the_first_token_that_differs_is_named(original: dict[str, Any], other: str, problem: str) -> None:
    answers = [(ids("a"), "length"), (ids(other), "length")]
    names = {letter: ids(letter)[0] for letter in "cd"}
    assert entry._problem(front(), [expected("a"), original], answers) == problem.format(**names)


def test_other_tokens_are_refused() -> None:
    entry._require_same("one prompt at a time", "")
    with pytest.raises(ExportFailed, match=r"not the model \(all prompts at once\): token 3 is another"):
        entry._require_same("all prompts at once", "token 3 is another")


@pytest.mark.parametrize(
    ("generation", "changes"),
    [
        ({}, {}),
        (
            {"do_sample": True, "temperature": 0.6, "top_p": 0.9, "top_k": 40},
            {"temperature": 0.6, "top_p": 0.9, "top_k": 40},
        ),
        ({"temperature": 0.6, "top_p": 0.9, "top_k": 40}, {}),  # without do_sample the author's pipeline ignores them
        ({"eos_token_id": None}, {"stop_ids": []}),
        ({"eos_token_id": [2, 5]}, {"stop_ids": [2, 5]}),
        ({"repetition_penalty": 1.3}, {"repetition_penalty": 1.3}),
    ],
)
def test_settings_are_the_author_s(generation: dict[str, Any], changes: dict[str, Any]) -> None:
    transformers = pytest.importorskip("transformers")
    config = transformers.LlamaConfig(vocab_size=300, max_position_embeddings=128)
    how = transformers.GenerationConfig(**{"eos_token_id": 2} | generation)
    settings = entry._settings(
        SimpleNamespace(config=config, generation_config=how), SimpleNamespace(model_max_length=10**30)
    )
    plain = {
        "context": 128,
        "vocabulary": 300,
        "stop_ids": [2],
        "temperature": 0.0,
        "top_p": 1.0,
        "top_k": 0,
        "repetition_penalty": 1.0,
    }
    assert settings == plain | changes


def test_a_tokenizer_without_a_tokenizer_json_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ExportFailed, match=r"a tokenizer without a tokenizer\.json"):
        entry._write_tokenizer(SimpleNamespace(), tmp_path / "tokenizer.json")
