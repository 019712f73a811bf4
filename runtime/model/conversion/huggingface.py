"""Hugging Face models that take text: pipelines of one encoder pass, and sentence encoders.

MLflow loads the model, so the answers are those of `mlflow.pyfunc`. The ONNX graph has the module and the tensor
operations that follow it: softmax or sigmoid, the choice of a mask's tokens, pooling and normalisation. `text_front`
makes labels and tokens. The architecture is code of `transformers`, since admission refuses any other.
"""

import json
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cached_property
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray

from shiplift.runtime.base.errors import ExportFailed
from shiplift.runtime.guest.fronts.text_front import IDS, MASK, SETTINGS, TOKENIZER, TYPES, Text, TextFront
from shiplift.runtime.model.conversion import graphs, text_graphs
from shiplift.runtime.model.conversion.original import Original
from shiplift.runtime.model.conversion.torch_models import TorchModule
from shiplift.runtime.model.tensors import Arrays, batch_of, concatenate, dump_npz
from shiplift.runtime.model.text.tasks import PAIR, task_of, texts_of, truncation_of
from shiplift.runtime.records.model import Flavor
from shiplift.runtime.records.tensor import Signature, TensorSpec

_SPACES = "Ġ▁"  # with which tokens of other tokenizers begin a word
_MAX_TEXTS = 16  # of an example: the pipeline answers them one by one


class HuggingFace(Original):
    """A text model as MLflow loads it. `answer` is the module's, on tokens."""

    takes_text = True

    def __init__(self, folder: Path, meta: dict[str, Any], flavor: Flavor, inputs: tuple[TensorSpec, ...]) -> None:
        self.task, self.cut = task_of(meta, flavor), truncation_of(meta)
        self.names = texts_of(self.task) or (inputs[0].name,)
        self.served = loaded(folder)
        raw = self.served.get_raw_model()
        self.model, self.tokenizer = (
            (raw, raw.tokenizer) if flavor == "sentence_transformers" else (raw.model, raw.tokenizer)
        )
        _check_prompts(self.model)
        module = text_graphs.graph(self.model, self.task, self.tokenizer)
        self.types = self.names == PAIR and TYPES in self.tokenizer.model_input_names
        tokens = (IDS, MASK, TYPES) if self.types else (IDS, MASK)
        specs = tuple(TensorSpec(name=name, datatype="INT64", shape=(-1, -1)) for name in tokens)
        self.graph = TorchModule(module, specs, text_graphs.OUTPUTS[self.task])

    @cached_property
    def front(self) -> TextFront:
        """The tokenizer and the settings, in the form written for serving."""
        with TemporaryDirectory() as folder:
            self.write_front(Path(folder))
            return TextFront(Path(folder))

    def write_text(self, example: Arrays, to: Path, exported: Signature) -> Signature:
        """Writes the front, and texts with the answers of `mlflow.pyfunc` to each."""
        (to / "text").mkdir(exist_ok=True)
        self.write_front(to / "text")
        first = self.front.samples(example)[:_MAX_TEXTS]
        samples = list(dict.fromkeys([*first, *self.varied(first), *self._long(first[0])]))
        answers = self.expected(samples)
        columns = zip(*map(_parts, samples), strict=True)
        asked = {f"input/{name}": _text(*texts) for name, texts in zip(self.names, columns, strict=True)}
        (to / "texts.npz").write_bytes(dump_npz(asked | {f"output/{key}": array for key, array in answers.items()}))
        specs = tuple(TensorSpec(name=name, datatype="BYTES", shape=(-1, 1)) for name in self.names)
        return Signature(inputs=specs, outputs=tuple(_seen(key, array) for key, array in answers.items()))

    def write_front(self, to: Path) -> None:
        """Writes `tokenizer.json` and `text.json`."""
        backend = getattr(self.tokenizer, "backend_tokenizer", None)
        if backend is None:
            raise ExportFailed(
                "the model has a tokenizer without a tokenizer.json",
                do="Log it with a fast one: `AutoTokenizer.from_pretrained(..., use_fast=True)`.",
            )
        backend.no_padding()
        backend.no_truncation()
        backend.save(str(to / TOKENIZER))
        (to / SETTINGS).write_text(json.dumps(self._settings(), sort_keys=True, indent=1))

    def _settings(self) -> dict[str, Any]:
        sentence = self.task == "sentence-embedding"
        config = (self.model[0].model if sentence else self.model).config
        labels = getattr(config, "id2label", None) or {}
        limit = self.model.max_seq_length if sentence else self.tokenizer.model_max_length
        limit = self.cut.get("max_length", limit) if self.cut.get("truncation") else limit
        return {
            "task": self.task,
            "inputs": self.names,
            "types": self.types,
            "labels": [str(labels[at]) for at in range(len(labels))],
            "max_tokens": min(
                limit or text_graphs.MOST_TOKENS, text_graphs.positions(self.model), text_graphs.MOST_TOKENS
            ),
            "truncate": sentence or self.task == "token-classification" or bool(self.cut.get("truncation")),
            "pad_id": self.tokenizer.pad_token_id or 0,
            "mask_id": self.tokenizer.mask_token_id,
            "unknown_id": self.tokenizer.unk_token_id,
            "strip": sentence,
            "lower": sentence and bool(getattr(self.model[0], "do_lower_case", False)),
            "prefix": self.model.prompts.get(self.model.default_prompt_name, "") if sentence else "",
        }

    # --- the graph ---

    def tensors(self, requests: dict[str, Arrays]) -> dict[str, Arrays]:
        """The tokens of each set of texts. Some texts are made longer, so that every batch has padding."""
        sets = {}
        for name, inputs in requests.items():
            samples = self.varied(self.front.samples(inputs))
            sets[name] = self.front.feeds(self.front.encode(self.front.read(samples)))
        return sets

    def varied(self, samples: Sequence[Text]) -> list[Text]:
        """The samples, with every other one doubled, but without a second mask token, of which there must be one."""
        mask = self.tokenizer.mask_token or ""

        def doubled(text: str) -> str:
            return f"{text} {text.replace(mask, '') if mask else text}"

        return [
            _each(sample, doubled) if at % 2 and self._fits(sample) else sample for at, sample in enumerate(samples)
        ]

    def _long(self, sample: Text) -> list[Text]:
        """A sample that is longer than the model's limit, if longer ones are cut."""
        times = self.front.settings["max_tokens"]
        return [_each(sample, lambda text: f"{text} " * times)] if self.front.settings["truncate"] else []

    def _fits(self, sample: Text) -> bool:
        (encoding,) = self.front.tokenizer.encode_batch([sample])
        return bool(2 * len(encoding.ids) <= self.front.settings["max_tokens"])

    def answer(self, inputs: Arrays) -> Arrays:
        """The module's outputs."""
        return self.graph.answer(inputs)

    def to_onnx(self, example: Arrays, opset: int, path: Path) -> onnx.ModelProto:
        """Converts through torch's exporter, with dynamic batch and length."""
        return graphs.with_known_sizes(self.graph.to_onnx(batch_of(example, 2), opset, path))

    # --- what clients see ---

    def expected(self, samples: Sequence[Text]) -> Arrays:
        """The answers of `mlflow.pyfunc` to each single sample, under the names that clients see."""
        return concatenate([self._expected(sample) for sample in samples])

    def words(self) -> tuple[str, ...]:
        """The tokenizer's tokens without their marks, but for the special ones."""
        special, known = set(self.tokenizer.all_special_tokens), self.front.tokenizer.get_vocab()
        tokens = (token for token in sorted(known, key=known.__getitem__) if token not in special)
        return tuple(dict.fromkeys(bare for token in tokens if (bare := token.removeprefix("##").lstrip(_SPACES))))

    def answered_texts(self, texts: Iterable[str]) -> Iterator[tuple[Arrays, Arrays]]:
        """Those that fit; of a model of two texts, the second is half of the first, and each gets its mask token."""
        for text in texts:
            whole = f"{text} {self.tokenizer.mask_token}" if self.task == "fill-mask" else text
            sample = (whole, whole[: len(whole) // 2]) if len(self.names) > 1 else whole
            try:
                self.front.encode(self.front.read([sample]))
                answer = self._expected(sample)
            except Exception:  # noqa: S112 - made texts may be refused by either side
                continue
            yield {name: _text(part) for name, part in zip(self.names, _parts(sample), strict=True)}, answer

    def _expected(self, sample: Text) -> Arrays:
        text: Any = dict(zip(self.names, sample, strict=True)) if isinstance(sample, tuple) else sample
        if self.task in ("text-classification", "text-pair-classification"):
            (row,) = self.served.predict([text]).to_dict("records")
            return {"label": _text(row["label"]), "score": np.array([[row["score"]]], np.float32)}
        if self.task == "feature-extraction":
            return {"features": np.asarray(self.served.predict([text]), np.float32)[None]}
        if self.task == "sentence-embedding":
            return {"embeddings": np.asarray(self.served.predict([text]), np.float32)}
        entities = self.served.get_raw_model()(text)
        for entity in entities:
            entity.pop("sequence", None)
        detail = json.dumps(entities, default=float, ensure_ascii=False)
        if self.task == "fill-mask":
            return {"token": _text(self.served.predict([text])[0]), "candidates": _text(detail)}
        labels = self.served.predict([text])[0] if entities else ""  # MLflow fails on a text without entities
        return {"labels": _text(labels), "entities": _text(detail)}


def _seen(name: str, array: NDArray[Any]) -> TensorSpec:
    """An output as clients see it: if it has three dimensions, the second is the number of tokens."""
    sizes = (-1, array.shape[2]) if array.ndim == 3 else array.shape[1:]
    return TensorSpec(name=name, datatype="BYTES" if array.dtype.kind == "O" else "FP32", shape=(-1, *sizes))


def _text(*texts: str) -> Any:
    """A column of texts."""
    return np.array(texts, dtype=object).reshape(-1, 1)


def _parts(sample: Text) -> tuple[str, ...]:
    return sample if isinstance(sample, tuple) else (sample,)


def _each(sample: Text, change: Callable[[str], str]) -> Text:
    return tuple(map(change, sample)) if isinstance(sample, tuple) else change(sample)


def stay_offline() -> None:
    """Keeps the libraries from contacting the hub. Call it before they are imported."""
    os.environ.update(HF_HUB_OFFLINE="1", TRANSFORMERS_OFFLINE="1", TOKENIZERS_PARALLELISM="false")


def loaded(folder: Path) -> Any:
    """The model as MLflow loads it, without contacting the hub."""
    stay_offline()
    import mlflow.pyfunc  # noqa: PLC0415

    return mlflow.pyfunc.load_model(str(folder))


def _check_prompts(model: Any) -> None:
    """Refuses prompts that are tokenized but not pooled: they would need a mask of their own."""
    for module in model if hasattr(model, "prompts") else ():
        if not getattr(module, "include_prompt", True):
            raise ExportFailed(
                "the sentence encoder leaves its prompt out of the pooling, which is not supported",
                do="Set `include_prompt=True` in its Pooling module, or log the model as pt2.",
            )
