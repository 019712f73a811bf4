"""Continues the tokens of many requests at once with vLLM, in the NVIDIA Triton image that contains it.

vLLM gets tokens and gives tokens: as with every engine, the front handles texts. It runs in this process, so that a
step is a step of the model.

Process: Triton's Python backend, as `engine.py` in the place of OpenVINO's.
Python: that of NVIDIA's image
Packages: vllm
"""

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")

from vllm import EngineArgs, LLMEngine, SamplingParams, TokensPrompt
from vllm.sampling_params import RequestOutputKind

_ENDS = ("stop", "length")


class GenerationEngine:
    """The model in a folder, and the requests in progress. Not thread-safe."""

    def __init__(
        self, folder: Path, settings: Mapping[str, Any], *, sequences: int, tokens: int, options: Mapping[str, str]
    ) -> None:
        """`settings` are those of `generation.json`. At most `sequences`, of `tokens` each, are continued at once.

        Of `options`, `dtype` is the data type of the computation, and `gpus` the number of GPUs that share the model.
        """
        self._settings = settings
        self._engine = LLMEngine.from_engine_args(
            EngineArgs(
                model=str(folder / "weights"),
                skip_tokenizer_init=True,
                trust_remote_code=False,
                dtype=options.get("dtype", "auto"),
                tensor_parallel_size=int(options.get("gpus", "1")),
                max_model_len=tokens,
                max_num_seqs=sequences,
                disable_log_stats=True,
            )
        )

    def start(self, number: int, ask: Any) -> None:
        """Takes a request (`front.Ask`)."""
        settings = self._settings
        sampling = SamplingParams(
            max_tokens=ask.max_tokens,
            temperature=ask.temperature,
            top_p=ask.top_p,
            top_k=settings["top_k"] or -1,
            seed=ask.seed,
            repetition_penalty=settings["repetition_penalty"],
            stop_token_ids=list(settings["stop_ids"]),
            ignore_eos=True,
            detokenize=False,
            output_kind=RequestOutputKind.DELTA,
        )
        self._engine.add_request(str(number), TokensPrompt(prompt_token_ids=list(ask.ids)), sampling)

    @property
    def busy(self) -> bool:
        """Whether any request is in progress."""
        return bool(self._engine.has_unfinished_requests())

    def step(self) -> Iterator[tuple[int, list[int], str, str]]:
        """One step of all requests: what each got (`generator.Piece`)."""
        for output in self._engine.step():
            answer = output.outputs[0]
            reason = (answer.finish_reason or "stop") if output.finished else ""
            ended, failed = (reason, "") if reason in ("", *_ENDS) else ("", f"vLLM ended it: {reason}")
            yield int(output.request_id), list(answer.token_ids), ended, failed

    def drop(self, number: int) -> None:
        """Cancels a request; the next step frees its resources."""
        self._engine.abort_request([str(number)])
