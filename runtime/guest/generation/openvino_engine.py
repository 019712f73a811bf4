"""Continues the tokens of many requests at once, in one pipeline of OpenVINO GenAI (continuous batching).

The same code checks a model and serves it. A request joins the batch at the next step and leaves it when it ends,
independently of the others.

Process: Triton's Python backend, as `engine.py`; Shiplift's sandbox, where a model is checked.
Python: the server's
Packages: numpy, openvino, openvino_genai (in the package)
"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import openvino
import openvino_genai

_BLOCK = 32  # tokens per block of the cache on a CPU
_STEP_TOKENS = 512  # of prompts read per step, so that a long prompt does not delay the others' next tokens


@dataclass(kw_only=True)
class _Run:
    """A request in progress: GenAI's handle, how many more tokens it may get, and its last one."""

    handle: Any
    left: int
    last: int | None = None


class GenerationEngine:
    """The model in a folder, and the requests in progress. Not thread-safe."""

    def __init__(
        self, folder: Path, settings: Mapping[str, Any], *, sequences: int, tokens: int, options: Mapping[str, str]
    ) -> None:
        """`settings` are those of `generation.json`. The cache has room for `sequences` with as many `tokens` each.

        Of `options`, `intra_op_threads` is how many threads compute, and `precision_hint` their precision.
        """
        precision = options.get("precision_hint", "f32")
        scheduler = openvino_genai.SchedulerConfig()
        scheduler.max_num_batched_tokens = max(_STEP_TOKENS, sequences)
        scheduler.max_num_seqs = sequences
        scheduler.num_kv_blocks = sequences * math.ceil(tokens / _BLOCK) + 1
        self._settings = settings
        self._runs: dict[int, _Run] = {}
        self._pipeline = openvino_genai.ContinuousBatchingPipeline(
            str(folder),
            scheduler,
            "CPU",
            {
                "INFERENCE_PRECISION_HINT": precision,
                "KV_CACHE_PRECISION": precision,
                "INFERENCE_NUM_THREADS": int(options.get("intra_op_threads", "1")),
                "ENABLE_CPU_PINNING": False,
            },
        )

    def start(self, number: int, ask: Any) -> None:
        """Takes a request (`front.Ask`)."""
        settings, config = self._settings, openvino_genai.GenerationConfig()
        stop_ids = settings["stop_ids"] or [settings["vocabulary"]]  # a token that does not exist: none ends it
        config.max_new_tokens = ask.max_tokens
        config.repetition_penalty = settings["repetition_penalty"]
        config.set_eos_token_id(stop_ids[0])
        config.stop_token_ids = set(stop_ids)
        if ask.temperature > 0:
            config.do_sample, config.rng_seed = True, ask.seed
            config.temperature, config.top_p = ask.temperature, ask.top_p
            config.top_k = settings["top_k"] or settings["vocabulary"]
        ids = openvino.Tensor(np.array([ask.ids], np.int64))
        self._runs[number] = _Run(handle=self._pipeline.add_request(number, ids, config), left=ask.max_tokens)

    @property
    def busy(self) -> bool:
        """Whether any request is in progress."""
        return bool(self._pipeline.has_non_finished_requests())

    def step(self) -> Iterator[tuple[int, list[int], str, str]]:
        """One step of all requests: what each got (`generator.Piece`)."""
        self._pipeline.step()
        for number, run in list(self._runs.items()):
            ids, ended, failed = self._read(run)
            if ended or failed:
                del self._runs[number]
            yield number, ids, ended, failed

    def drop(self, number: int) -> None:
        """Cancels a request; the next step frees its resources."""
        run = self._runs.pop(number, None)
        if run is not None:
            run.handle.cancel()

    def _read(self, run: _Run) -> tuple[list[int], str, str]:
        ids: list[int] = []
        status = run.handle.get_status()
        while run.handle.can_read():
            for output in run.handle.read().values():
                ids.extend(output.generated_ids)
        run.left -= len(ids)
        run.last = ids[-1] if ids else run.last
        if status == openvino_genai.GenerationStatus.IGNORED:
            return ids, "", "its memory for keys and values is used up"
        if status == openvino_genai.GenerationStatus.RUNNING:
            return ids, "", ""
        return ids, "stop" if run.left > 0 or run.last in self._settings["stop_ids"] else "length", ""
