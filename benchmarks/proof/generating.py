"""Asks a text generator in this process, as its export is proved: the most likely tokens after a prompt."""

import os
from pathlib import Path
from typing import Any

import numpy as np

from shiplift.runtime.guest.generation.front import GenerationFront, Pieces
from shiplift.runtime.guest.generation.generator import Generator
from shiplift.runtime.model.tensors import Arrays
from shiplift.runtime.proof.settings import Ask

TOKENS = 8  # of an answer
_MOST_TOKENS, _SEQUENCES = 256, 16


def generating(folder: Path) -> Ask:
    """How to ask the generator in a folder for texts: `input`, (prompts, 1), gives `text`, (prompts, 1)."""
    from shiplift.runtime.guest.generation.openvino_engine import GenerationEngine

    front = GenerationFront(folder, max_prompt_tokens=_MOST_TOKENS, max_tokens=_MOST_TOKENS)
    options = {"intra_op_threads": str(len(os.sched_getaffinity(0)))}
    engine = GenerationEngine(folder, front.settings, sequences=_SEQUENCES, tokens=_MOST_TOKENS, options=options)
    generator = Generator(engine)

    def ask(inputs: Arrays) -> Arrays:
        prompts = [str(item) for item in inputs["input"].ravel()]
        return {"text": _column([_text(front, tokens) for tokens in _run(generator, front, prompts)])}

    return ask


def _run(generator: Generator, front: GenerationFront, prompts: list[str]) -> list[list[int]]:
    """The tokens after each prompt; all run at the same time."""
    asks = [front.read({"prompt": prompt, "temperature": 0, "max_tokens": TOKENS}) for prompt in prompts]
    answers: dict[int, list[int]] = {generator.add(ask): [] for ask in asks}
    while generator.busy:
        for number, new in generator.step().items():
            answers[number] += new.ids
    return list(answers.values())


def _text(front: GenerationFront, tokens: list[int]) -> str:
    pieces = Pieces(front, ())
    return "".join([pieces.add([token]) for token in tokens] + [pieces.close()])


def _column(texts: list[str]) -> Any:
    return np.array(texts, dtype=object).reshape(-1, 1)
