"""What is fuzzed: each parser that meets bytes from somebody else, the errors that it may raise, and where to begin.

A parser either answers, or raises one of its own errors. Anything else is a finding.
"""

import io
import json
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

Parse = Callable[[bytes], Any]
_SPLIT = b"\0\0\0\0"  # between the two files of an input


@dataclass(frozen=True, kw_only=True)
class Prepared:
    """A parser that is ready: `refusals` are its own errors, and `corpus` what mutations begin with."""

    parse: Parse
    refusals: tuple[type[BaseException], ...]
    corpus: Sequence[bytes]


@dataclass(frozen=True, kw_only=True)
class Target:
    """A parser by name. `prepare` imports it. `longest` is the size of the largest input in bytes."""

    name: str
    prepare: Callable[[], Prepared]
    longest: int = 2048


def _folder() -> Path:
    return Path(tempfile.mkdtemp(prefix="fuzz-"))


def _spec() -> Prepared:
    from shiplift.runtime.base.errors import ShipliftError
    from shiplift.runtime.spec import document

    corpus = (
        b"model: a\ntargets: [{name: cpu}]\nslo: {p99_ms: 5}\nload: {concurrency: 4, duration_s: 5}\n",
        b"quantization: {timeout_s: 5}\nserving: {request_timeout_s: 3, limits: {memory_mb: 900, cpu_s: 2}}\n",
        b"admission: {pickle: sandbox, python: sandbox}\nexport: {fallback: python}\nquality: {min_score: 0.9}\n",
        b"policy:\n  rules:\n  - {metric: latency_p99_ms, at_most: 5}\nrollout: {replicas: 2}\n",
        b"a: &a [*a]\nb: !!python/object:os.system {}\nc: 1e999\nd: 2020-01-01\n",
    )
    return Prepared(
        parse=lambda data: document.parse(data.decode(errors="replace")), refusals=(ShipliftError,), corpus=corpus
    )


_SIGNATURE = json.dumps([{"name": "x", "type": "double"}, {"name": "t", "type": "string", "required": False}])
_TENSORS = json.dumps([{"name": "x", "type": "tensor", "tensor-spec": {"dtype": "float32", "shape": [-1, 2]}}])


def _mlmodel(flavor: str, inputs: str, kind: str) -> bytes:
    return json.dumps(
        {
            "flavors": {
                flavor: {"data": "model.onnx", "pickled_model": "m"},
                "python_function": {"env": "e", "data": "d"},
            },
            "saved_input_example_info": {"artifact_path": "e.json", "type": kind, "pandas_orient": "split"},
            "signature": {"inputs": inputs, "outputs": _TENSORS, "params": None},
        }
    ).encode()


def _contract() -> Prepared:
    """`MLmodel`, its signature, and its input example."""
    from shiplift.runtime.base.errors import ShipliftError
    from shiplift.runtime.model import contracts

    folder = _folder()

    def parse(data: bytes) -> Any:
        meta, _, example = data.partition(_SPLIT)
        (folder / contracts.METADATA).write_bytes(meta)
        (folder / "e.json").write_bytes(example)
        return contracts.read_model(folder, python=True)

    corpus = (
        _mlmodel("sklearn", _SIGNATURE, "dataframe")
        + _SPLIT
        + b'{"columns": ["x", "t"], "data": [[1.5, "a"], [2, null]]}',
        _mlmodel("lightgbm", _TENSORS, "ndarray") + _SPLIT + b'{"inputs": {"x": [[1, 2.5]]}}',
        _mlmodel("xgboost", _TENSORS, "sparse_matrix_csr")
        + _SPLIT
        + b'{"data": [1], "indices": [0], "indptr": [0, 1], "shape": [1, 2]}',
        b"flavors:\n  transformers:\n    task: text-classification\nsignature:\n  inputs: '[]'\n" + _SPLIT + b'"text"',
    )
    return Prepared(parse=parse, refusals=(ShipliftError,), corpus=corpus)


def _webhook() -> Prepared:
    """Signatures, MLflow's body and a push of git, in any headers."""
    from pydantic import ValidationError

    from shiplift.pipelines.triggers import pushes, signatures
    from shiplift.pipelines.triggers.intake import WebhookBody

    names = (
        "x-mlflow-signature",
        "x-mlflow-delivery-id",
        "x-mlflow-timestamp",
        "x-hub-signature-256",
        "x-gitlab-token",
    )

    def parse(data: bytes) -> None:
        head, _, body = data.partition(_SPLIT)
        headers = dict(zip(names, head.decode("latin-1").split("\n"), strict=False))
        signatures.check_mlflow(("secret",), headers, body, now=1e9)
        signatures.check_github(("secret",), headers, body)
        signatures.check_gitlab(("secret",), headers, body, now=1e9)
        for host in ("github", "gitlab"):
            pushes.read_push(host, body, lambda *_: None)
        WebhookBody.model_validate_json(body)

    commit = "a" * 40
    corpus = (
        b"v1,c2ln\nid\n1000000000\nsha256=00\ntoken"
        + _SPLIT
        + b'{"entity": "model_version", "action": "created", "data": {"name": "m", "version": 3}}',
        _SPLIT
        + json.dumps(
            {"ref": "refs/heads/main", "before": commit, "after": commit, "repository": {"full_name": "a/b"}}
        ).encode(),
        _SPLIT
        + json.dumps(
            {
                "object_kind": "push",
                "ref": "r",
                "before": commit,
                "after": commit,
                "project": {"path_with_namespace": "a/b"},
            }
        ).encode(),
    )
    return Prepared(parse=parse, refusals=(ValidationError,), corpus=corpus)


def _openai() -> Prepared:
    from shiplift.runtime.serving.openai import messages

    def parse(data: bytes) -> None:
        kind = (messages.CompletionRequest, messages.ChatRequest)[bool(data[:1] == b"c")]
        request = messages.read(kind, data[1:])
        _ = request.prompts, request.stops, request.most_tokens

    corpus = (
        b'p{"model": "m", "prompt": ["a", "b"], "n": 2, "stop": ["x"], "max_tokens": 3, "stream": true}',
        b'c{"model": "m", "messages": [{"role": "user", "content": [{"type": "text", "text": "hi"}]}], "seed": 1}',
    )
    return Prepared(parse=parse, refusals=(messages.RequestProblem,), corpus=corpus)


def _invocations() -> Prepared:
    """MLflow's scoring protocol: JSON and CSV."""
    from shiplift.runtime.records.tensor import Signature, TensorSpec
    from shiplift.runtime.serving.discovery import ServedModel
    from shiplift.runtime.serving.scoring import requests
    from shiplift.runtime.serving.scoring.problems import ScoringProblem
    from shiplift.runtime.serving.scoring.schema import schema_of

    columns = (
        TensorSpec(name="a", datatype="FP64", shape=(-1, 1)),
        TensorSpec(name="b", datatype="BYTES", shape=(-1, 1), optional=True),
        TensorSpec(name="c", datatype="INT64", shape=(-1, 1)),
    )
    tensors = (TensorSpec(name="x", datatype="FP32", shape=(-1, 2)),)
    schemas = [
        schema_of(
            ServedModel(
                model="m", name="m", version=1, grpc="", http="", signature=Signature(inputs=inputs, outputs=tensors)
            )
        )
        for inputs in (columns, tensors)
    ]

    def parse(data: bytes) -> None:
        kind = requests.CSV if data[:1] == b"," else requests.JSON
        for schema in schemas:
            try:
                if not requests.read_at_once(kind, data[1:], schema):
                    requests.read_other(kind, data[1:], schema)
            except ScoringProblem:
                continue

    corpus = (
        b' {"dataframe_split": {"columns": ["a", "b", "c"], "data": [[1.5, "t", 3]]}}',
        b' {"dataframe_records": [{"a": 1, "b": null, "c": 2}], "params": {"k": 1}}',
        b' {"inputs": [[1.0, 2.0]]}',
        b' {"instances": [{"a": 1, "b": "x", "c": 2}]}',
        b",a,b,c\n1.5,text,3\n",
    )
    return Prepared(parse=parse, refusals=(ScoringProblem,), corpus=corpus)


def _tokenizer(folder: Path) -> None:
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    alphabet = pre_tokenizers.ByteLevel.alphabet()
    core = Tokenizer(models.BPE(vocab={letter: at for at, letter in enumerate(sorted(alphabet))}, merges=[]))
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    core.decoder = decoders.ByteLevel()
    core.save(str(folder / "tokenizer.json"))


def _prompt() -> Prepared:
    """A text generator's requests: prompts, conversations, and the pieces of answers."""
    from shiplift.runtime.guest.generation.front import BadRequest, GenerationFront, Pieces, conversation

    folder = _folder()
    _tokenizer(folder)
    settings = {"context": 512, "stop_ids": [3], "top_k": 0, "repetition_penalty": 1, "temperature": 1, "top_p": 1}
    (folder / "generation.json").write_text(json.dumps(settings))
    front = GenerationFront(folder, max_prompt_tokens=200, max_tokens=64)

    def parse(data: bytes) -> None:
        numbers, _, body = data.partition(_SPLIT)
        given = json.loads(numbers) if numbers[:1] == b"{" else {}
        if isinstance(given, dict) and "chat" in given:
            conversation(body)
            return
        known = {"max_tokens": int, "temperature": float, "top_p": float, "seed": int}
        fields = {name: kind(given[name]) for name, kind in known.items() if isinstance(given.get(name), int | float)}
        stop = [text.encode(errors="replace") for text in given.get("stop", []) if isinstance(text, str)]
        ask = front.read({"prompt": body, **fields, "stop": stop})
        pieces = Pieces(front, ask.stop)
        for token in ask.ids:
            pieces.add([token])
        pieces.close()

    def guarded(data: bytes) -> None:
        try:
            parse(data)
        except (ValueError, RecursionError, OverflowError, TypeError):
            if data[:1] != b"{":
                raise

    corpus = (
        b'{"max_tokens": 3, "temperature": 0.5, "top_p": 0.9, "seed": 7, "stop": ["ab"]}' + _SPLIT + b"a prompt ab",
        b'{"chat": 1}' + _SPLIT + b'[{"role": "user", "content": "hi", "name": "n"}]',
        _SPLIT + "ein Text über Bäume \U0001f600".encode(),
    )
    return Prepared(parse=guarded, refusals=(BadRequest,), corpus=corpus)


def _text() -> Prepared:
    from shiplift.runtime.guest.fronts.text_front import BadText, TextFront

    folder = _folder()
    _tokenizer(folder)
    settings = {
        "task": "text-classification", "inputs": ["text"], "labels": ["a", "b"], "max_tokens": 256, "truncate": False,
        "types": True, "pad_id": 0, "mask_id": -1, "unknown_id": 1, "strip": True, "lower": True, "prefix": "q: ",
    }  # fmt: skip
    (folder / "text.json").write_text(json.dumps(settings))
    front = TextFront(folder)

    def parse(data: bytes) -> None:
        front.feeds(front.encode(front.read(data.split(_SPLIT))))

    corpus = (b"a text" + _SPLIT + b"another", "Bäume \U0001f600 \u202e".encode(), b"\xff\xfe")
    return Prepared(parse=parse, refusals=(BadText,), corpus=corpus)


def _image() -> Prepared:
    import numpy as np
    from PIL import Image

    from shiplift.runtime.guest.fronts.encoded import BadImage, scans_of
    from shiplift.runtime.guest.fronts.pixel_front import decoded

    settings = {"colors": "RGB", "max_megapixels": 1, "draft": False, "resize": 8, "filter": "bilinear", "crop": None}
    pixels = np.random.default_rng(0).integers(0, 255, (16, 16, 3), np.uint8)

    def saved(kind: str, **options: Any) -> bytes:
        file = io.BytesIO()
        Image.fromarray(pixels).save(file, kind, **options)
        return file.getvalue()

    def parse(data: bytes) -> None:
        scans_of(data)
        decoded(data, settings)

    corpus = (saved("JPEG", quality=10), saved("JPEG", quality=10, progressive=True), saved("PNG"))
    return Prepared(parse=parse, refusals=(BadImage,), corpus=corpus)


def _wire() -> Prepared:
    """A message between a model's process and its host, in pieces as a pipe brings them."""
    import numpy as np

    from shiplift.runtime.guest.graphs.packing import pack_each, unpack_each
    from shiplift.runtime.guest.python.wire import BadMessage, Reader, pack

    def parse(data: bytes) -> None:
        reader, at = Reader(), 0
        while reader.missing and at < len(data):
            piece = data[at : at + reader.missing]
            reader.take(piece)
            at += len(piece)
        reader.message()

    texts = np.array(["a", "b"], dtype=object)
    packed = pack_each([{"x": np.ones((1, 2), np.float32), "t": np.array([b"ab"], dtype=object), "": texts}])
    unpack_each(packed)
    corpus = (
        pack(),
        pack(error="x"),
        pack({"x": np.ones((2, 2), np.float32), "t": texts}, form={"kind": "array"}),
        pack(packed),
    )
    return Prepared(parse=parse, refusals=(BadMessage,), corpus=corpus)


def _pipeline_wire() -> Prepared:
    """A message between a pipeline and the process of its author's Python."""
    import numpy as np

    from shiplift.runtime.guest.pipelines import pipeline_messages as wire

    def message(**arrays: Any) -> bytes:
        return b"".join(bytes(buffer) for buffer in wire.packed({"call": "step"}, arrays))

    corpus = (message(), message(x=np.ones((2, 2), np.float32), t=np.array([b"ab", b""], dtype=object)))
    return Prepared(parse=wire.unpacked, refusals=(wire.Broken,), corpus=corpus)


def _sandbox() -> Prepared:
    from shiplift.runtime.confinement.messages import Log, MessageReceiver

    def parse(data: bytes) -> None:
        received, log = MessageReceiver(), Log()
        for piece in data.split(b"\xff"):
            received.take(piece + b"\n")
            log.take(piece)
        log.tail()

    corpus = (
        b'{"value": {"a": [1]}}\xff{"progress": "half", "done": 0.5}',
        b'{"error": 20, "what": "it \\u001b[31m failed", "do": "Change it."}\xff{"progress": 1, "done": "x"}',
    )
    return Prepared(parse=parse, refusals=(), corpus=corpus)


def _pickle() -> Prepared:
    """The walk over a pickle's opcodes, which never runs it."""
    import pickle

    from shiplift.runtime.admission.formats import pickles

    value = {"a": [1, 2.5, ("x", b"y", None)], "f": io.BytesIO, "c": complex(1, 2)}
    corpus = tuple(pickle.dumps(value, protocol) for protocol in range(6))
    return Prepared(parse=lambda data: pickles.walk(io.BytesIO(data)), refusals=(), corpus=corpus)


def _archive() -> Prepared:
    """Zip files as NumPy, torch and skops write them."""
    import numpy as np

    from shiplift.runtime.admission.contents import ScanRules
    from shiplift.runtime.admission.formats import archives

    file = io.BytesIO()
    np.savez_compressed(file, a=np.arange(4), b=np.array(["x"]))
    rules = [ScanRules(pickle="sandbox", budget_bytes=1 << 22)]

    def parse(data: bytes) -> None:
        rules[0] = ScanRules(pickle="sandbox", budget_bytes=1 << 22)
        if archives.is_archive(io.BytesIO(data)):
            list(archives.findings("a.npz", io.BytesIO(data), rules[0]))

    return Prepared(parse=parse, refusals=(), corpus=(file.getvalue(),))


def _safetensors() -> Prepared:
    """Hugging Face's folders: weights, configurations and tokenizers, read before any library does."""
    from shiplift.runtime.admission.formats import huggingface_files
    from shiplift.runtime.base.files import regular_files

    folder = _folder()

    def parse(data: bytes) -> None:
        names = ("model.safetensors", "config.json", "tokenizer.json")
        for name, body in zip(names, data.split(_SPLIT), strict=False):
            (folder / name).write_bytes(body)
        list(huggingface_files.problems(regular_files(folder)))

    header = json.dumps({"w": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}).encode()
    whole = len(header).to_bytes(8, "little") + header + b"\0\0\xc0\x3f"
    other = (
        b'{"vocab_size": 3, "auto_map": {}}' + _SPLIT + b'{"model": {"vocab": {"a": 0}}, "added_tokens": [{"id": 2}]}'
    )
    return Prepared(parse=parse, refusals=(), corpus=(whole + _SPLIT + other,))


TARGETS = (
    Target(name="wire: a model's process", prepare=_wire),
    Target(name="wire: a pipeline's process", prepare=_pipeline_wire),
    Target(name="messages of a sandbox", prepare=_sandbox),
    Target(name="webhook", prepare=_webhook),
    Target(name="requests as OpenAI's clients send them", prepare=_openai),
    Target(name="requests: text", prepare=_text, longest=512),
    Target(name="requests: generation", prepare=_prompt, longest=512),
    Target(name="requests: images", prepare=_image),
    Target(name="pickles", prepare=_pickle),
    Target(name="archives", prepare=_archive),
    Target(name="requests as MLflow's clients send them", prepare=_invocations),
    Target(name="safetensors, configurations and tokenizers", prepare=_safetensors),
    Target(name="spec", prepare=_spec),
    Target(name="MLmodel and contract", prepare=_contract),
)
