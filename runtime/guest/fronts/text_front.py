"""Text in and answers out, around a graph that takes token ids: tokenization, padding, and labels, entities and tokens.

The same code checks a model and serves it. Tokenizers run in their Rust library from `tokenizer.json`, never through
Python classes of an author.

Process: Triton's Python backend or a process beside it, as `front.py` beside `panics.py`; Shiplift's sandbox.
Python: the server's
Packages: numpy, tokenizers (in the package)
"""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from tokenizers import Encoding, Tokenizer

if __package__:
    from .panics import contained  # noqa: TID251 - in Shiplift
else:
    from panics import contained

TOKENIZER, SETTINGS = "tokenizer.json", "text.json"
MAX_TEXT_BYTES = 256 << 10
IDS, MASK, TYPES = "input_ids", "attention_mask", "token_type_ids"
Arrays = dict[str, Any]
Item = bytes | str
Text = str | tuple[str, ...]  # of one sample; a tuple if the model takes several texts
Request = tuple[Sequence[Text], Sequence[Encoding]]  # texts, and the tokens of each


class BadText(ValueError):
    """A text that the model can't take; `str()` is for the client that sent it."""


class TextFront:
    """What is around a model's graph.

    `text.json` has: `task`; `inputs`, the names of the texts in the tokenizer's order; `labels` by class; `max_tokens`
    and whether longer texts are cut (`truncate`); `types`, whether the graph is told from which text a token is;
    `pad_id`, `mask_id` and `unknown_id`; `strip` and `lower`, what is done to a text first; and `prefix`, what it
    begins with.
    """

    def __init__(self, folder: Path) -> None:
        self.settings: dict[str, Any] = json.loads((folder / SETTINGS).read_text())
        with contained(ValueError, f"reading {TOKENIZER}"):
            self.tokenizer = Tokenizer.from_file(str(folder / TOKENIZER))
        self.tokenizer.no_padding()
        self.tokenizer.no_truncation()
        if self.settings["truncate"]:
            self.tokenizer.enable_truncation(self.settings["max_tokens"])
        self._answer = _ANSWERS[self.settings["task"]]

    def samples(self, inputs: Mapping[str, Any]) -> list[Any]:
        """The samples of arrays by input name: an item each, or a tuple of items if the model takes several texts."""
        columns = [inputs[name].reshape(-1) for name in self.settings["inputs"]]
        return list(columns[0]) if len(columns) == 1 else list(zip(*columns, strict=True))

    def read(self, samples: Sequence[Item | tuple[Item, ...]]) -> list[Text]:
        """The texts of samples as the tokenizer takes them.

        Raises:
            BadText: one is not UTF-8, or too large.
        """
        return [
            _of_sample(list(map(self._read, sample if isinstance(sample, tuple) else (sample,)))) for sample in samples
        ]

    def _read(self, item: Item) -> str:
        body = item if isinstance(item, bytes) else item.encode(errors="surrogatepass")
        if len(body) > MAX_TEXT_BYTES:
            raise BadText(f"the text has {len(body)} bytes, the limit is {MAX_TEXT_BYTES}: send it in parts")
        try:
            text = body.decode()
        except UnicodeDecodeError as error:
            raise BadText(f"the text is not UTF-8: byte {error.start} is 0x{body[error.start]:02x}") from None
        text = text.strip() if self.settings["strip"] else text
        return f"{self.settings['prefix']}{text.lower() if self.settings['lower'] else text}"

    def encode(self, texts: Sequence[Text]) -> list[Encoding]:
        """The tokens of each text.

        Raises:
            BadText: a text has more tokens than the model takes, or the wrong number of mask tokens, or the tokenizer
                panics.
        """
        with contained(BadText, "the model's tokenizer"):
            encodings: list[Encoding] = self.tokenizer.encode_batch(list(texts))
        for encoding in encodings:
            self._check(encoding)
        return encodings

    def _check(self, encoding: Encoding) -> None:
        limit = self.settings["max_tokens"]
        if len(encoding.ids) > limit:
            what = "the text has" if len(self.settings["inputs"]) == 1 else "both texts have"
            raise BadText(f"{what} {len(encoding.ids)} tokens, the model takes {limit}: send less at once")
        masks = encoding.ids.count(self.settings["mask_id"])
        if self.settings["task"] == "fill-mask" and masks != 1:
            token = self.tokenizer.id_to_token(self.settings["mask_id"])
            raise BadText(f"the text has {masks} mask tokens, and needs exactly one {token}")

    def padding(self) -> dict[str, int]:
        """What the graph's inputs are filled up with, by name."""
        return {IDS: self.settings["pad_id"], MASK: 0} | ({TYPES: 0} if self.settings["types"] else {})

    def feeds(self, encodings: Sequence[Encoding], length: int = 1) -> Arrays:
        """The graph's inputs, int64 of shape (texts, tokens of the longest): shorter texts are padded and masked.

        They have at least `length` tokens.
        """
        shape = (len(encodings), max(length, *(len(encoding.ids) for encoding in encodings)))
        ids, mask = np.full(shape, self.settings["pad_id"], np.int64), np.zeros(shape, np.int64)
        types = np.zeros(shape, np.int64)
        for row, encoding in enumerate(encodings):
            ids[row, : len(encoding.ids)] = encoding.ids
            mask[row, : len(encoding.ids)] = 1
            types[row, : len(encoding.ids)] = encoding.type_ids
        return {IDS: ids, MASK: mask} | ({TYPES: types} if self.settings["types"] else {})

    def answers(self, texts: Sequence[Text], encodings: Sequence[Encoding], outputs: Arrays) -> Arrays:
        """What clients get, by name, from the graph's outputs for the same texts."""
        return self._answer(self, texts, encodings, outputs)

    def split(self, requests: Sequence[Request], outputs: Arrays) -> Iterator[Arrays]:
        """The answers to each request of a batch, of its own length however long the others' texts are."""
        start = 0
        for texts, encodings in requests:
            rows = slice(start, start + len(texts))
            longest = max(len(encoding.ids) for encoding in encodings)
            own = {name: a[rows, :longest] if a.ndim == 3 else a[rows] for name, a in outputs.items()}
            yield self.answers(texts, encodings, own)
            start = rows.stop

    def run(self, samples: Sequence[Item | tuple[Item, ...]], graph: Callable[[Arrays], Arrays]) -> Arrays:
        """The answers to samples, asked of `graph` in one batch.

        Raises:
            BadText: the model can't take a text.
        """
        texts = self.read(samples)
        encodings = self.encode(texts)
        return self.answers(texts, encodings, graph(self.feeds(encodings)))


def _of_sample(texts: list[str]) -> Text:
    """As `transformers` has it, an empty second text is none: the first is then encoded by itself."""
    return texts[0] if not any(texts[1:]) else tuple(texts)


def _classes(front: TextFront, _texts: Sequence[Text], _encodings: Sequence[Encoding], outputs: Arrays) -> Arrays:
    """The most probable label of each text, and its score."""
    scores = outputs["probabilities"]
    best = scores.argmax(axis=1)
    labels = [front.settings["labels"][at] for at in best]
    return {
        "label": np.array(labels, dtype=object).reshape(-1, 1),
        "score": np.take_along_axis(scores, best[:, None], axis=1).astype(np.float32),
    }


def _entities(front: TextFront, texts: Sequence[str], encodings: Sequence[Encoding], outputs: Arrays) -> Arrays:
    """The labels of each text's tokens, but for `O`, joined by commas as MLflow does; and the entities as JSON."""
    lists = [
        list(_entities_of(front, text, encoding, scores))
        for text, encoding, scores in zip(texts, encodings, outputs["probabilities"], strict=True)
    ]
    return {
        "labels": _column([",".join(entity["entity"] for entity in entities) for entities in lists]),
        "entities": _column([json.dumps(entities, ensure_ascii=False) for entities in lists]),
    }


def _entities_of(front: TextFront, text: str, encoding: Encoding, scores: Any) -> Any:
    for at, special in enumerate(encoding.special_tokens_mask):
        best = int(scores[at].argmax())
        label = front.settings["labels"][best]
        if special or label == "O":
            continue
        start, end = encoding.offsets[at]
        unknown = encoding.ids[at] == front.settings["unknown_id"]
        word = text[start:end] if unknown else encoding.tokens[at]
        yield {
            "entity": label,
            "score": float(scores[at][best]),
            "index": at,
            "word": word,
            "start": start,
            "end": end,
        }


def _filled(front: TextFront, _texts: Sequence[str], _encodings: Sequence[Encoding], outputs: Arrays) -> Arrays:
    """The most probable token for each text's mask, and the first five with their scores as JSON."""
    lists = [
        [
            {"token": int(token), "token_str": _string(front, int(token)), "score": float(score)}
            for token, score in zip(tokens, scores, strict=True)
        ]
        for tokens, scores in zip(outputs["tokens"], outputs["scores"], strict=True)
    ]
    return {
        "token": _column([str(candidates[0]["token_str"]).strip() for candidates in lists]),
        "candidates": _column([json.dumps(candidates, ensure_ascii=False) for candidates in lists]),
    }


def _string(front: TextFront, token: int) -> str:
    text: str = front.tokenizer.decode([token], skip_special_tokens=False)
    return text


def _column(texts: list[str]) -> Any:
    return np.array(texts, dtype=object).reshape(-1, 1)


def _as_they_are(_front: TextFront, _texts: Sequence[str], _encodings: Sequence[Encoding], outputs: Arrays) -> Arrays:
    return outputs


_ANSWERS: dict[str, Callable[..., Arrays]] = {
    "text-classification": _classes,
    "text-pair-classification": _classes,
    "token-classification": _entities,
    "fill-mask": _filled,
    "feature-extraction": _as_they_are,
    "sentence-embedding": _as_they_are,
}
Front, Refused = TextFront, BadText  # what `model.py` calls them
