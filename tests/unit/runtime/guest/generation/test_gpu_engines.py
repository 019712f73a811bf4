"""vLLM and TensorRT-LLM behind the same interface as OpenVINO GenAI.

Neither library runs without a GPU, so their documented interfaces are played here, by something that continues tokens
in a known way. What is tested is the code around them: what they are asked, and what becomes of their answers.
"""

import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, ClassVar

import pytest

from shiplift.runtime.guest.generation.front import Ask
from shiplift.runtime.guest.generation.generator import Generator

SETTINGS = {"stop_ids": [2], "top_k": 0, "repetition_penalty": 1.0}
OPTIONS = {"dtype": "bfloat16", "gpus": "2"}
ENGINES = ("vllm_engine", "tensorrt_llm_engine")


def ask(*ids: int, most: int = 8, temperature: float = 0.0) -> Ask:
    return Ask(ids=ids, max_tokens=most, temperature=temperature, top_p=0.9, seed=7)


def continued(ids: list[int], most: int) -> tuple[list[int], str]:
    """Counts up from the last token of the prompt, and stops after 9."""
    tokens = list(range(ids[-1] + 1, 10))[:most]
    return (tokens, "length") if len(tokens) == most else ([*tokens, 2], "stop")


class Recorded(SimpleNamespace):
    """What a class of the library was called with."""

    def __init__(self, **fields: Any) -> None:
        super().__init__(**fields)


class Vllm:
    """The engine of vLLM: a token for each request per step."""

    made: ClassVar[list[Any]] = []

    def __init__(self, arguments: Any) -> None:
        self.arguments = arguments
        self.requests: dict[str, tuple[list[int], str, Any]] = {}
        self.made.append(self)

    @classmethod
    def from_engine_args(cls, arguments: Any) -> "Vllm":
        return cls(arguments)

    def add_request(self, number: str, prompt: Any, sampling: Any) -> None:
        tokens, ended = continued(prompt.prompt_token_ids, sampling.max_tokens)
        self.requests[number] = (tokens, ended, sampling)

    def has_unfinished_requests(self) -> bool:
        return bool(self.requests)

    def abort_request(self, numbers: list[str]) -> None:
        for number in numbers:
            self.requests.pop(number, None)

    def step(self) -> list[Any]:
        outputs = []
        for number, (tokens, ended, sampling) in list(self.requests.items()):
            finished = len(tokens) == 1
            answer = SimpleNamespace(token_ids=tokens[:1], finish_reason=ended if finished else None)
            outputs.append(SimpleNamespace(request_id=number, outputs=[answer], finished=finished))
            self.requests[number] = (tokens[1:], ended, sampling)
            if finished:
                del self.requests[number]
        return outputs


class Stream:
    """An answer of TensorRT-LLM: all tokens so far at each step, without the one that is the end of the sequence."""

    def __init__(self, ids: list[int], sampling: Any) -> None:
        self.tokens, self.ended = continued(ids, sampling.max_tokens)
        self.shown = self.tokens[:-1] if self.ended == "stop" else self.tokens
        self.sampling, self.aborted = sampling, False

    def __iter__(self) -> Iterator[Any]:
        for count in range(1, len(self.shown) + 1):
            last = count == len(self.shown)
            answer = SimpleNamespace(token_ids=self.shown[:count], finish_reason=self.ended if last else None)
            yield SimpleNamespace(outputs=[answer], finished=last)

    def abort(self) -> None:
        self.aborted = True


class TensorrtLlm:
    """The `LLM` of TensorRT-LLM."""

    made: ClassVar[list[Any]] = []

    def __init__(self, **arguments: Any) -> None:
        self.arguments = Recorded(**arguments)
        self.streams: list[Any] = []
        self.made.append(self)

    def generate_async(self, ids: list[int], *, sampling_params: Any, streaming: bool) -> Any:
        assert streaming
        if ids == [99]:
            raise_later = Stream([1], sampling_params)
            raise_later.__class__ = type("Broken", (Stream,), {"__iter__": _broken})
            return raise_later
        self.streams.append(Stream(ids, sampling_params))
        return self.streams[-1]


def _broken(_: Any) -> Iterator[Any]:
    raise RuntimeError("no memory is left")
    yield


@pytest.fixture(autouse=True)
def libraries(monkeypatch: pytest.MonkeyPatch) -> None:
    vllm, sampling, tensorrt_llm = (ModuleType(name) for name in ("vllm", "vllm.sampling_params", "tensorrt_llm"))
    vllm.__dict__.update(EngineArgs=Recorded, LLMEngine=Vllm, SamplingParams=Recorded, TokensPrompt=Recorded)
    sampling.__dict__.update(RequestOutputKind=SimpleNamespace(DELTA="delta"))
    tensorrt_llm.__dict__.update(LLM=TensorrtLlm, SamplingParams=Recorded)
    for module in (vllm, sampling, tensorrt_llm):
        monkeypatch.setitem(sys.modules, module.__name__, module)
    for name in ENGINES:
        monkeypatch.delitem(sys.modules, f"shiplift.runtime.guest.generation.{name}", raising=False)
    Vllm.made, TensorrtLlm.made = [], []


@pytest.fixture(params=ENGINES)
def generator(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    module = import_module(f"shiplift.runtime.guest.generation.{request.param}")
    return Generator(module.GenerationEngine(tmp_path, SETTINGS, sequences=4, tokens=64, options=OPTIONS))


def run(generator: Any, *asks: Ask) -> list[tuple[list[int], str]]:
    answers: dict[int, tuple[list[int], str]] = {generator.add(each): ([], "") for each in asks}
    while generator.busy:
        for number, new in generator.step().items():
            answers[number] = (answers[number][0] + new.ids, new.ended)
    return list(answers.values())


def test_requests_are_continued_together_each_up_to_its_end(generator: Any) -> None:
    assert run(generator, ask(1, 3), ask(6), ask(4, most=2)) == [
        ([4, 5, 6, 7, 8, 9, 2], "stop"),
        ([7, 8, 9, 2], "stop"),
        ([5, 6], "length"),
    ]
    assert not generator.busy


def test_a_request_that_is_given_up_is_given_up_in_the_library(generator: Any) -> None:
    kept, dropped = generator.add(ask(3)), generator.add(ask(3))
    generator.drop(dropped)
    news: dict[int, list[int]] = {}
    while generator.busy:
        for number, new in generator.step().items():
            news.setdefault(number, []).extend(new.ids)
    assert set(news) == {kept}
    if TensorrtLlm.made:
        assert [stream.aborted for stream in TensorrtLlm.made[0].streams] == [False, True]


def test_the_library_reads_the_weights_beside_and_no_code_of_the_author_s(generator: Any, tmp_path: Path) -> None:
    (made,) = [*Vllm.made, *TensorrtLlm.made]
    told = vars(made.arguments)
    assert told["model"] == str(tmp_path / "weights")
    assert (told["dtype"], told["tensor_parallel_size"], told["trust_remote_code"]) == ("bfloat16", 2, False)
    assert 64 in (told.get("max_model_len"), told.get("max_seq_len"))
    assert 4 in (told.get("max_num_seqs"), told.get("max_batch_size"))
    run(generator, ask(5, temperature=0.7), ask(5))
    if TensorrtLlm.made:
        drawn, likely = (vars(stream.sampling) for stream in made.streams)
        assert (drawn["temperature"], drawn["top_k"], drawn["seed"]) == (0.7, None, 7)
        assert (likely["temperature"], likely["top_k"]) == (None, 1)


def test_a_request_for_which_the_library_raises_fails_alone() -> None:
    module = import_module("shiplift.runtime.guest.generation.tensorrt_llm_engine")
    generator = Generator(module.GenerationEngine(Path(), SETTINGS, sequences=4, tokens=64, options={}))
    bad, good = generator.add(ask(99)), generator.add(ask(7))
    failed: dict[int, str] = {}
    ids: list[int] = []
    while generator.busy:
        for number, new in generator.step().items():
            failed[number] = new.failed
            ids += new.ids if number == good else []
    assert (failed[bad], failed[good]) == ("no memory is left", "")
    assert ids == [8, 9, 2]
