"""Continues the tokens of many requests at once with TensorRT-LLM, in the NVIDIA Triton image that contains it.

TensorRT-LLM reads the model's own weights (its PyTorch backend), so that no engine has to be built for the GPU first.
It does its own batching, and answers each request in a separate stream, which a thread follows.

Process: Triton's Python backend, as `engine.py` in the place of OpenVINO's.
Python: that of NVIDIA's image
Packages: tensorrt_llm
"""

import contextlib
import queue
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from tensorrt_llm import LLM, SamplingParams

_WAIT_S = 0.05


class GenerationEngine:
    """The model in a folder, and the requests in progress. Not thread-safe."""

    def __init__(
        self, folder: Path, settings: Mapping[str, Any], *, sequences: int, tokens: int, options: Mapping[str, str]
    ) -> None:
        """`settings` are those of `generation.json`. At most `sequences`, of `tokens` each, are continued at once.

        Of `options`, `dtype` is the data type of the computation, and `gpus` the number of GPUs that share the model.
        """
        self._settings = settings
        self._streams: dict[int, Any] = {}
        self._pieces: queue.SimpleQueue[tuple[int, list[int], str, str]] = queue.SimpleQueue()
        self._model = LLM(
            model=str(folder / "weights"),
            skip_tokenizer_init=True,
            trust_remote_code=False,
            dtype=options.get("dtype", "auto"),
            tensor_parallel_size=int(options.get("gpus", "1")),
            max_batch_size=sequences,
            max_seq_len=tokens,
        )

    def start(self, number: int, ask: Any) -> None:
        """Takes a request (`front.Ask`)."""
        settings = self._settings
        stop_ids = settings["stop_ids"] or [-1]  # so that no token ends the answer
        sampling = SamplingParams(
            max_tokens=ask.max_tokens,
            temperature=ask.temperature or None,
            top_p=ask.top_p,
            top_k=(settings["top_k"] or None) if ask.temperature else 1,
            seed=ask.seed,
            repetition_penalty=settings["repetition_penalty"],
            end_id=stop_ids[0],
            pad_id=stop_ids[0],
            stop_token_ids=list(stop_ids[1:]) or None,
            detokenize=False,
        )
        stream = self._model.generate_async(list(ask.ids), sampling_params=sampling, streaming=True)
        self._streams[number] = stream
        threading.Thread(target=self._follow, args=(number, stream), daemon=True).start()

    @property
    def busy(self) -> bool:
        """Whether any request is in progress."""
        return bool(self._streams)

    def step(self) -> Iterator[tuple[int, list[int], str, str]]:
        """What requests got since the last step (`generator.Piece`); waits a moment if there is none."""
        wait = True
        with contextlib.suppress(queue.Empty):
            while True:
                number, ids, ended, failed = self._pieces.get(wait, _WAIT_S if wait else None)
                wait = False
                if number in self._streams:
                    if ended or failed:
                        del self._streams[number]
                    yield number, ids, ended, failed

    def drop(self, number: int) -> None:
        """Cancels a request; TensorRT-LLM frees its resources."""
        stream = self._streams.pop(number, None)
        if stream is not None:
            stream.abort()

    def _follow(self, number: int, stream: Any) -> None:
        known = 0
        try:
            for output in stream:
                answer = output.outputs[0]
                ids = self._with_stop(list(answer.token_ids), answer)
                ended = (answer.finish_reason or "stop") if output.finished else ""
                self._pieces.put((number, ids[known:], ended, ""))
                known = len(ids)
                if ended:
                    return
            self._pieces.put((number, [], "", "TensorRT-LLM ended it"))
        except Exception as error:  # it ends only this request
            self._pieces.put((number, [], "", str(error)[:200]))

    def _with_stop(self, ids: list[int], answer: Any) -> list[int]:
        """An answer's tokens with the one that ended it, which TensorRT-LLM leaves out if it is the end of sequence."""
        stops = self._settings["stop_ids"]
        ended = answer.finish_reason == "stop" and stops and not (ids and ids[-1] in stops)
        return [*ids, stops[0]] if ended else ids
