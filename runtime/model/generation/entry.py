"""The sandboxed halves of a text generator's export: writing it for OpenVINO GenAI, and comparing the next tokens.

The first half loads the pipeline and records which tokens `transformers` generates. The second, in another sandbox,
asks OpenVINO GenAI the same: one prompt at a time, and all of them at once, since production answers many together.
"""

import json
import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from shiplift.runtime.base.errors import ExportFailed
from shiplift.runtime.base.progress import progress
from shiplift.runtime.guest.generation.chat import CHAT as CHAT_FILE
from shiplift.runtime.guest.generation.front import SETTINGS, TOKENIZER, Ask, BadRequest, GenerationFront, Pieces
from shiplift.runtime.guest.generation.generator import Generator
from shiplift.runtime.model.conversion.huggingface import loaded
from shiplift.runtime.model.generation import causal, chatting
from shiplift.runtime.model.generation.signature import (
    CHAT,
    FINISH_REASON,
    MAX_TOKENS,
    PROMPT,
    PROMPT_TOKENS,
    ROOM,
    SURE,
    TEMPERATURE,
    TEXT,
    TOKENS,
)
from shiplift.runtime.model.tensors import Arrays, dump_npz, load_npz

PRELOAD = ("torch", "transformers", "mlflow.transformers")
COMPARED_TOKENS = 32  # of each answer
GOLDEN_TOKENS = 8
CLOSE_CALL = 1e-3  # between the original's two best scores: within this, rounding may prefer either
_PROMPTS = 8
_MOST_TOKENS = 131_072
_ANSWERS = "answers.json"


def convert(*, folder: str, example: str, out: str) -> dict[str, Any]:
    """Writes `out/model` (OpenVINO's model, `tokenizer.json`, `generation.json`), `out/answers.json` and `chats.json`.

    A model with a chat template also has a `chat.json`; `chats.json` has the tokens of some conversations.
    `answers.json` is what `transformers` generates after each prompt in the NPZ `example`, always taking the most
    likely token: `prompt`, `ids`, `tokens`, their `text`, and the `margins` by which each was the most likely.

    Raises:
        ExportFailed: the model does not load, generate or convert.
    """
    logging.disable(logging.WARNING)
    served = loaded(Path(folder)).get_raw_model()
    model, tokenizer = served.model.eval().float(), served.tokenizer
    written = Path(out) / "model"
    written.mkdir()
    settings = _settings(model, tokenizer)
    (written / SETTINGS).write_text(json.dumps(settings, sort_keys=True, indent=1))
    _write_tokenizer(tokenizer, written / TOKENIZER)
    front = GenerationFront(written, max_prompt_tokens=_MOST_TOKENS, max_tokens=_MOST_TOKENS)
    texts = [str(text) for array in load_npz(Path(example)).values() for text in array.reshape(-1)]
    progress("generating with the original")
    answers = [_continued(model, tokenizer, front, prompt) for prompt in list(dict.fromkeys(texts))[:_PROMPTS]]
    (Path(out) / _ANSWERS).write_text(json.dumps(answers))
    chats = chatting.write(tokenizer, written / CHAT_FILE)
    (Path(out) / chatting.CHATS).write_text(json.dumps(chats))
    progress("converting to OpenVINO")
    causal.write(model, written)
    return {"context": settings["context"], "prompts": len(answers)}


def verify(*, model: str, answers: str, chats: str, threads: int, out: str) -> dict[str, Any]:
    """Compares what OpenVINO GenAI generates with `answers`, and writes golden requests to `out/reference.npz`.

    The prompts of conversations are compared with `chats`. If they differ, `chat_problem` says how.

    Raises:
        ExportFailed: GenAI does not load the model, or generates other tokens.
    """
    expected = json.loads(Path(answers).read_text())
    folder = Path(model)
    front = GenerationFront(folder, max_prompt_tokens=_MOST_TOKENS, max_tokens=_MOST_TOKENS)
    asks = [front.read({PROMPT: each["prompt"], "temperature": 0, MAX_TOKENS: _most(each)}) for each in expected]
    generator = _generator(folder, front, asks, threads)
    progress("comparing tokens, one prompt at a time")
    alone = [_run(generator, [ask])[0] for ask in asks]
    progress("comparing tokens, all prompts at once")
    together = _run(generator, asks)
    cases = []
    for name, batch, got in (("one prompt at a time", 1, alone), ("all prompts at once", len(asks), together)):
        _require_same(name, _problem(front, expected, got))
        cases.append({"inputs": name, "batch": batch, "max_abs": 0.0, "max_rel": 0.0})
    chat = chatting.compared(folder / CHAT_FILE, front, json.loads(Path(chats).read_text()))
    golden = _golden(generator, front, expected, chat.golden)
    (Path(out) / "reference.npz").write_bytes(dump_npz(golden))
    return {"parity": cases, "chats": chat.same, "chat_problem": chat.problem}


def _generator(folder: Path, front: GenerationFront, asks: Sequence[Ask], threads: int) -> Generator:
    from shiplift.runtime.guest.generation.openvino_engine import GenerationEngine  # noqa: PLC0415 - needs an extra

    longest = max(len(ask.ids) + ask.max_tokens for ask in asks)
    try:
        return Generator(
            GenerationEngine(
                folder, front.settings, sequences=len(asks), tokens=longest, options={"intra_op_threads": str(threads)}
            )
        )
    except RuntimeError as error:
        raise ExportFailed(
            f"OpenVINO GenAI does not load the converted model: {' '.join(str(error).split())[:400]}",
            do="Choose a model with ordinary attention in all its layers, such as Llama, Qwen or Mistral.",
        ) from error


def _run(generator: Generator, asks: Sequence[Ask]) -> list[tuple[list[int], str]]:
    """The tokens of each answer, and why it ended; all run at the same time."""
    numbers = [generator.add(ask) for ask in asks]
    answers: dict[int, tuple[list[int], str]] = {number: ([], "") for number in numbers}
    while generator.busy:
        for number, new in generator.step().items():
            answers[number] = (answers[number][0] + new.ids, new.ended or new.failed)
    return [answers[number] for number in numbers]


def _require_same(setting: str, problem: str) -> None:
    if problem:
        raise ExportFailed(
            f"what would be served is not the model ({setting}): {problem}",
            do="Choose a model with ordinary attention in all its layers, such as Llama, Qwen or Mistral.",
        )


def _most(answer: dict[str, Any]) -> int:
    return max(1, int(answer["asked"]))


def _problem(
    front: GenerationFront, expected: Sequence[dict[str, Any]], answers: Sequence[tuple[list[int], str]]
) -> str:
    """The first token that differs from the original's, unless the original was undecided about it."""
    for at, (wanted, (tokens, _)) in enumerate(zip(expected, answers, strict=True), 1):
        differ = next(
            (i for i, pair in enumerate(zip(wanted["tokens"], tokens, strict=False)) if len(set(pair)) > 1), None
        )
        if differ is None and len(tokens) != len(wanted["tokens"]):
            return f"prompt {at} is answered with {len(tokens)} tokens, the original generates {len(wanted['tokens'])}"
        if differ is not None and wanted["margins"][differ] > CLOSE_CALL:
            return (
                f"token {differ + 1} after prompt {at} is {tokens[differ]}, the original's is "
                f"{wanted['tokens'][differ]}, by a margin of {wanted['margins'][differ]:.3g}"
            )
        if differ is None and _text(front, tokens) != wanted["text"]:
            return f"the text after prompt {at} is {_text(front, tokens)!r}, the original's is {wanted['text']!r}"[:500]
    return ""


def _text(front: GenerationFront, tokens: Sequence[int]) -> str:
    pieces = Pieces(front, ())
    return "".join([pieces.add([token]) for token in tokens] + [pieces.close()])


def _golden(
    generator: Generator, front: GenerationFront, expected: Sequence[dict[str, Any]], chat: chatting.Chat | None
) -> Arrays:
    """Short answers to the prompts, and to a conversation if there is one, from the engine that serves."""
    prompts = [each["prompt"] for each in expected]
    most = min(GOLDEN_TOKENS, *map(_most, expected))
    sure = [min(each["margins"][:most], default=0.0) > CLOSE_CALL for each in expected]
    fields = [{PROMPT: prompt} for prompt in prompts]
    if chat:
        prompts, sure = [chat.body, *prompts], [False, *sure]
        fields = [chat.fields, *fields]
    asks = [front.read({**each, "temperature": 0, MAX_TOKENS: most}) for each in fields]
    answers = [_run(generator, [ask])[0] for ask in asks]
    chats = {f"input/{CHAT}": np.arange(len(asks)).reshape(-1, 1) < 1} if chat else {}
    return {
        f"input/{PROMPT}": _column(prompts),
        **chats,
        f"input/{MAX_TOKENS}": np.full((len(asks), 1), most, np.int32),
        f"input/{TEMPERATURE}": np.zeros((len(asks), 1), np.float32),
        ROOM: np.array([[front.read(each).max_tokens] for each in fields], np.int32),
        SURE: np.array(sure).reshape(-1, 1),
        f"output/{TEXT}": _column([_text(front, tokens) for tokens, _ in answers]),
        f"output/{FINISH_REASON}": _column([reason for _, reason in answers]),
        f"output/{TOKENS}": np.array([[len(tokens)] for tokens, _ in answers], np.int32),
        f"output/{PROMPT_TOKENS}": np.array([[len(ask.ids)] for ask in asks], np.int32),
    }


def _column(texts: Sequence[str]) -> Any:
    return np.array(texts, dtype=object).reshape(-1, 1)


# --- the original ---


def _settings(model: Any, tokenizer: Any) -> dict[str, Any]:
    """The settings of a model for `GenerationFront` and the engine."""
    config, generation = model.config.get_text_config(decoder=True), model.generation_config
    limits = [getattr(config, name, None) for name in ("max_position_embeddings", "n_positions", "sliding_window")]
    stop = generation.eos_token_id
    sampled = bool(generation.do_sample)
    return {
        "context": min(int(limit) for limit in (*limits, tokenizer.model_max_length, _MOST_TOKENS) if limit),
        "vocabulary": int(config.vocab_size),
        "stop_ids": [] if stop is None else [int(token) for token in (stop if isinstance(stop, list) else [stop])],
        "temperature": float(generation.temperature or 1.0) if sampled else 0.0,
        "top_p": float(generation.top_p or 1.0) if sampled else 1.0,
        "top_k": int(generation.top_k or 0) if sampled else 0,
        "repetition_penalty": float(generation.repetition_penalty or 1.0),
    }


def _write_tokenizer(tokenizer: Any, to: Path) -> None:
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None:
        raise ExportFailed(
            "the model has a tokenizer without a tokenizer.json",
            do="Log it with a fast one: `AutoTokenizer.from_pretrained(..., use_fast=True)`.",
        )
    backend.no_padding()
    backend.no_truncation()
    backend.save(str(to))


def _continued(model: Any, tokenizer: Any, front: GenerationFront, prompt: str) -> dict[str, Any]:
    """What `transformers` generates after a prompt, always taking the most likely token."""
    import torch  # noqa: PLC0415

    try:
        ask = front.read({PROMPT: prompt, "temperature": 0})
    except BadRequest as error:
        raise ExportFailed(f"the model can't take the input example: {error}", do="Log a shorter prompt.") from error
    ids = tokenizer(prompt, return_tensors="pt").input_ids
    if tuple(ids[0].tolist()) != ask.ids:
        raise ExportFailed(
            "the model's tokenizer gives other tokens than its tokenizer.json alone",
            do="Save it with the tokenizers library's own post-processor, and log that.",
        )
    asked = min(COMPARED_TOKENS, ask.max_tokens)
    with torch.no_grad():
        result = model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            do_sample=False,
            num_beams=1,
            max_new_tokens=asked,
            temperature=None,
            top_p=None,
            top_k=None,
            return_dict_in_generate=True,
            output_scores=True,
        )
    tokens = result.sequences[0, ids.shape[1] :].tolist()
    best = [torch.topk(scores[0], 2).values for scores in result.scores]
    margins = [float(first - second) for first, second in best]
    shown = tokens[:-1] if tokens and tokens[-1] in front.settings["stop_ids"] else tokens
    text = tokenizer.decode(shown, skip_special_tokens=True, clean_up_tokenization_spaces=False)
    return {"prompt": prompt, "asked": asked, "tokens": tokens, "margins": margins, "text": text}
