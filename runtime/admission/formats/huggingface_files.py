"""Hugging Face folders: weights as safetensors, a tokenizer that fits them, and no reference to code.

`transformers` imports classes that a configuration names (`auto_map`), and unpickles weights that are not safetensors.
"""

import json
import operator
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, BinaryIO

from shiplift.runtime.admission.formats.json_files import mappings
from shiplift.runtime.base.files import TreeFile, open_regular, read_regular
from shiplift.runtime.model.contracts import METADATA

Problem = tuple[str, str]  # a file, and what is wrong with it
_MAX_TOKENIZER_BYTES, _MAX_CONFIG_BYTES, _MAX_HEADER_BYTES = 64 << 20, 16 << 20, 100 << 20
_PROCESSORS = ("preprocessor_config.json", "processor_config.json")  # for images, which need no tokenizer
_CODE = ("auto_map", "custom_pipelines", "trust_remote_code")
_PICKLES = {".bin", ".pt", ".pth", ".ckpt", ".pkl", ".pickle", ".msgpack", ".h5"}
_MODULES = "sentence_transformers."
_ACTIVATIONS = "torch.nn.modules."


def problems(files: Sequence[TreeFile]) -> Iterator[Problem]:
    """What is wrong with the files of a logged pipeline or sentence encoder."""
    for file in files:
        yield from ((file.name, what) for what in _of_file(file))
    if not any(file.name.endswith(".safetensors") for file in files):
        yield METADATA, "it has no weights as .safetensors: save the model with `safe_serialization=True`"
    tokenizers = [file for file in files if file.path.name == "tokenizer.json"]
    if not tokenizers and not any(file.path.name in _PROCESSORS for file in files):
        yield METADATA, "it has no tokenizer.json: log it with a fast tokenizer (`AutoTokenizer` loads one)"
    for file in tokenizers:
        yield from ((file.name, what) for what in _tokenizer(file, files))


def _of_file(file: TreeFile) -> Iterator[str]:
    suffix = Path(file.name).suffix.lower()
    if suffix in _PICKLES:
        yield f"weights are read from .safetensors only, not from {suffix}: save with `safe_serialization=True`"
    elif suffix == ".safetensors":
        yield from _safetensors(file)
    elif suffix == ".json" and file.path.name != "tokenizer.json":
        yield from _configuration(file)


def _configuration(file: TreeFile) -> Iterator[str]:
    try:
        body = json.loads(read_regular(file.path, _MAX_CONFIG_BYTES))
    except (ValueError, RecursionError) as error:
        yield f"it can't be read as JSON: {type(error).__name__}"
        return
    for mapping in mappings(body):
        if names := [name for name in _CODE if mapping.get(name)]:
            yield f"`{names[0]}` names code in the artifact; only architectures of `transformers` itself are loaded"
        if file.path.name == "modules.json" and not str(mapping.get("type")).startswith(_MODULES):
            yield f"the module {str(mapping.get('type'))[:80]!r} is not one of `sentence_transformers`"
        activation = mapping.get("activation_function")
        if isinstance(activation, str) and "." in activation and not activation.startswith(_ACTIVATIONS):
            yield f"the activation {activation[:80]!r} is not one of `torch.nn`"


def _safetensors(file: TreeFile) -> Iterator[str]:
    try:
        with open_regular(file.path) as opened:
            header, left = _header(opened, file.size_bytes)
        ranges = sorted(tuple(entry["data_offsets"]) for name, entry in header.items() if name != "__metadata__")
        bounds = [(0, 0), *ranges, (left, left)]
        if any(after[0] < before[1] or before[0] > before[1] for before, after in pairwise(bounds)):
            yield "its tensors overlap, or lie outside the file"
    except (ValueError, KeyError, TypeError, AttributeError, IndexError, RecursionError) as error:
        yield f"it is not a safetensors file: {' '.join(str(error).split())[:100]}"


def _header(opened: BinaryIO, size: int) -> tuple[dict[str, Any], int]:
    """The header, and the number of data bytes after it."""
    length = int.from_bytes(opened.read(8), "little")
    if not 2 <= length <= min(_MAX_HEADER_BYTES, size - 8):
        raise ValueError(f"its header claims {length} bytes of {size}")
    return json.loads(opened.read(length)), size - 8 - length


def _tokenizer(file: TreeFile, files: Sequence[TreeFile]) -> Iterator[str]:
    """Checks that every token has an embedding: a larger id would crash the server's process, or read other memory."""
    try:
        tokenizer = json.loads(read_regular(file.path, _MAX_TOKENIZER_BYTES))
        most = max((operator.index(token) for token in _ids(tokenizer)), default=-1)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        yield f"it can't be read as a tokenizer: {' '.join(str(error).split())[:100]}"
        return
    for config in files:
        rows = _vocabulary(config) if config.path.name == "config.json" else None
        if rows is not None and most >= rows:
            yield f"it has tokens up to id {most}, but the model has embeddings for {rows} ({config.name})"


def _ids(tokenizer: Any) -> Iterator[int]:
    vocabulary = tokenizer["model"]["vocab"]
    yield from vocabulary.values() if isinstance(vocabulary, dict) else range(len(vocabulary))
    yield from (token["id"] for token in tokenizer.get("added_tokens") or ())


def _vocabulary(config: TreeFile) -> int | None:
    try:
        body = json.loads(read_regular(config.path, _MAX_CONFIG_BYTES))
    except (ValueError, RecursionError):
        return None  # `_configuration` reports it
    size = body.get("vocab_size") if isinstance(body, dict) else None
    return size if isinstance(size, int) else None
