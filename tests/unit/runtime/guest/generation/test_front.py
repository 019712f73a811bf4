"""The code around a model that generates: limits with their reasons, and pieces that add up to the text."""

import json
from functools import cache
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("tokenizers", reason="the `transformers` extra is not installed")

from shiplift.runtime.guest.generation.front import BadRequest, GenerationFront, Pieces

CONTEXT = 64


@cache
def front(max_prompt_tokens: int = 40, max_tokens: int = 30) -> GenerationFront:
    """Bytes are tokens, so that a character may be several; token 2 ends an answer."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    words = {token: at for at, token in enumerate(["<pad>", "<s>", "</s>", *alphabet])}
    core = Tokenizer(models.BPE(vocab=words, merges=[]))
    core.add_special_tokens(["<pad>", "<s>", "</s>"])
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    core.decoder = decoders.ByteLevel()
    folder = Path(mkdtemp())
    core.save(str(folder / "tokenizer.json"))
    settings = {"context": CONTEXT, "stop_ids": [2], "temperature": 0.5, "top_p": 0.9}
    (folder / "generation.json").write_text(json.dumps(settings))
    return GenerationFront(folder, max_prompt_tokens=max_prompt_tokens, max_tokens=max_tokens)


def ids(text: str) -> list[int]:
    return list(front().tokenizer.encode(text).ids)


def cut(text: str, stop: list[str]) -> str:
    found = [at for word in stop if (at := text.find(word)) >= 0]
    return text[: min(found)] if found else text


@given(st.text(max_size=30), st.lists(st.text(min_size=1, max_size=4), max_size=3), st.data())
def test_pieces_add_up_to_the_text_before_the_first_stop_text(text: str, stop: list[str], data: Any) -> None:
    tokens, pieces, told = [*ids(text), 2], Pieces(front(), stop), ""
    while tokens and not pieces.stopped:
        size = data.draw(st.integers(1, 5))
        told += pieces.add(tokens[:size])
        tokens = tokens[size:]
    told += pieces.close()
    assert told == cut(text, stop)
    stopped = pieces.stopped
    assert stopped == any(word in text for word in stop)
    assert pieces.add(ids("more")) == "" or not stopped


@cache
def llama() -> GenerationFront:
    """Words, and bytes for everything else; a run of bytes that are not characters is shown as that many signs."""
    from tokenizers import Tokenizer, decoders, models

    words = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), "▁", "▁a", "b", "▁the", "é", "."]
    core = Tokenizer(models.BPE(vocab={word: at for at, word in enumerate(words)}, merges=[], byte_fallback=True))
    core.add_special_tokens(["<s>", "</s>"])
    core.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    folder = Path(mkdtemp())
    core.save(str(folder / "tokenizer.json"))
    (folder / "generation.json").write_text(json.dumps({"context": CONTEXT, "stop_ids": [2]}))
    return GenerationFront(folder, max_prompt_tokens=40, max_tokens=30)


@pytest.mark.parametrize("around", [front, llama])
@given(data=st.data())
def test_whatever_tokens_come_the_pieces_add_up_to_their_text(around: Any, data: Any) -> None:
    """Tokens are drawn at random: bytes that are not characters, and ends of answers in the middle."""
    settings: GenerationFront = around()
    tokens = data.draw(st.lists(st.integers(3, settings.tokenizer.get_vocab_size() - 1), max_size=30))
    pieces = Pieces(settings, ())
    assert "".join([*(pieces.add([token]) for token in tokens), pieces.close()]) == settings.text_of(tokens)


def test_words_are_told_at_once_and_bytes_with_the_next_word() -> None:
    pieces, number = Pieces(llama(), ()), llama().tokenizer.get_vocab()
    told = [pieces.add([number[word]]) for word in ("▁the", "<0xC3>", "<0xB6>", "b", "<0xFF>", "▁a")]
    assert told == ["the", "", "", "öb", "", "\ufffd a"]


def test_half_a_character_and_what_may_be_a_stop_text_are_kept_back() -> None:
    pieces, (first, second) = Pieces(front(), ["end"]), ids("ö")
    assert [pieces.add([first]), pieces.add([second])] == ["", "ö"]
    assert [pieces.add(ids("a en")), pieces.add(ids("try")), pieces.add(ids(" en")), pieces.close()] == [
        "a ",
        "entry",
        " ",
        "en",
    ]


def test_a_request_without_options_gets_the_authors_and_the_room_that_there_is() -> None:
    ask = front().read({"prompt": b"abc"})
    assert (ask.ids, ask.max_tokens, ask.temperature, ask.top_p) == (tuple(ids("abc")), 30, 0.5, 0.9)
    assert front().read({"prompt": "a" * 40}).max_tokens == CONTEXT - 40


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"prompt": ""}, "the prompt is empty"),
        ({"prompt": b"\xff"}, "the prompt is not UTF-8: byte 0 is 0xff"),
        ({"prompt": "a" * (2 << 20)}, "the prompt has 2097152 bytes, the limit is 1048576"),
        ({"prompt": "a" * 41}, "the prompt has 41 tokens, the limit is 40: shorten it"),
        ({"prompt": "a", "max_tokens": 0}, "max_tokens is 0, it must be from 1 to 30"),
        ({"prompt": "a", "max_tokens": 31}, "max_tokens is 31, it must be from 1 to 30"),
        ({"prompt": "a" * 40, "max_tokens": 30}, "tokens and max_tokens is 30: together they exceed the model's 64"),
        ({"prompt": "a", "temperature": float("nan")}, "temperature is nan, it must be from 0 to 10"),
        ({"prompt": "a", "temperature": -0.5}, "temperature is -0.5"),
        ({"prompt": "a", "top_p": 0}, "top_p is 0, it must be more than 0"),
        ({"prompt": "a", "seed": -1}, "seed is -1"),
        ({"prompt": "a", "stop": ["a"] * 5}, "there are 5 stop texts, the limit is 4"),
        ({"prompt": "a", "stop": [""]}, "a stop text has 0 characters"),
    ],
)
def test_a_request_that_the_model_cannot_take_is_refused_with_the_limit(fields: dict[str, Any], reason: str) -> None:
    with pytest.raises(BadRequest, match=reason):
        front().read(fields)
