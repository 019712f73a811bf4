"""A language model as people log it: released, and its tokens streamed by the real Triton, confined."""

import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

from shiplift.runtime.base.errors import ServerFailed
from shiplift.runtime.base.exposition import samples_of
from shiplift.runtime.host.processes import free_port
from shiplift.runtime.model.generation.signature import SIGNATURE
from shiplift.runtime.records.verdict import Outcome
from shiplift.runtime.serving import streaming
from shiplift.runtime.serving.triton.client import TritonClient
from tests.generating import CHAT_TEMPLATE, PROMPTS, pipeline
from tests.integration.conftest import FAST, Lab, until

pytest.importorskip("openvino_genai", reason="the `generation` extra is not installed")
pytestmark = pytest.mark.slow
NAME = "writer"
SPEC = FAST.replace("slo: {", "slo: {ttft_p99_ms: 60000, tokens_per_s: 0.01, ").replace(
    "load: {", "load: {tokens: 250, "
)


def asked(prompt: str, **options: Any) -> dict[str, Any]:
    types = {"max_tokens": np.int32, "temperature": np.float32, "top_p": np.float32, "seed": np.int64}
    given = {name: np.array([[value]], types[name]) for name, value in options.items() if name in types}
    stop = {"stop": np.array([options["stop"]], object)} if "stop" in options else {}
    return {"prompt": np.array([[prompt]], dtype=object), **given, **stop}


@pytest.fixture(scope="module")
def released(lab: Lab) -> Any:
    """The pipeline, whose model is released and serves."""
    model = pipeline(template=CHAT_TEMPLATE)

    def log_model(**options: Any) -> Any:
        return lab.mlflow.transformers.log_model(model, input_example=PROMPTS, **options)

    report = lab.wait(NAME, lab.log(NAME, log_model, spec=SPEC), seconds=400)
    assert report.exit_code == 0, report.reason
    assert {"time to first token", "tokens"} <= {check.name for check in report.checks}
    assert "ask for as many as fit" in Path(report.report).read_text()  # 250 tokens after a prompt, in a context of 256
    return model


@pytest.fixture
def service(lab: Lab, released: Any) -> Iterator[Any]:
    with streaming.connected(lab.grpc) as stub:
        yield stub


def pieces(service: Any, prompt: str, **options: Any) -> list[dict[str, Any]]:
    request = streaming.request_of(NAME, SIGNATURE, asked(prompt, **options))
    return list(streaming.pieces(service, request, SIGNATURE, 60))


def told(parts: list[dict[str, Any]]) -> tuple[str, str, int]:
    """The text, why it ended, and how many tokens it has."""
    answer = streaming.whole(SIGNATURE, parts)
    return answer["text"].item().decode(), answer["finish_reason"].item().decode(), answer["tokens"].item()


def original(model: Any, prompt: str, tokens: int) -> str:
    import torch

    ids = model.tokenizer(prompt, return_tensors="pt").input_ids
    settings = {"do_sample": False, "max_new_tokens": tokens}
    written = model.model.generate(ids, attention_mask=torch.ones_like(ids), **settings)[0, ids.shape[1] :]
    return str(model.tokenizer.decode(written, skip_special_tokens=True))


def test_text_comes_in_pieces_and_is_that_of_transformers_for_many_clients(released: Any, service: Any) -> None:
    expected = {prompt: original(released, prompt, 24) for prompt in PROMPTS}
    parts = pieces(service, PROMPTS[1], max_tokens=24, temperature=0)
    assert len(parts) > 3
    assert told(parts) == (expected[PROMPTS[1]], "length", 24)
    with ThreadPoolExecutor(12) as clients:
        asks = [PROMPTS[at % len(PROMPTS)] for at in range(24)]
        answers = list(clients.map(lambda prompt: told(pieces(service, prompt, max_tokens=24, temperature=0)), asks))
    assert [text for text, *_ in answers] == [expected[prompt] for prompt in asks]


def test_a_seed_repeats_a_random_answer_and_a_stop_text_ends_one(service: Any) -> None:
    drawn = [told(pieces(service, "a", max_tokens=12, temperature=1.5, seed=seed))[0] for seed in (7, 7, 8)]
    assert drawn[0] == drawn[1] != drawn[2]
    text, *_ = told(pieces(service, PROMPTS[1], max_tokens=24, temperature=0))
    stop = text[10:13]
    cut, reason, _ = told(pieces(service, PROMPTS[1], max_tokens=24, temperature=0, stop=[stop, "never said"]))
    assert (cut, reason) == (text[: text.index(stop)], "stop")


@pytest.mark.parametrize(
    ("prompt", "options", "reason"),
    [
        ("a " * 2000, {}, "tokens, the limit is 255"),
        (b"\xff\xfe", {}, "not UTF-8"),
        ("a", {"max_tokens": 0}, "max_tokens is 0, it must be from 1 to 255"),
        ("ships carry", {"max_tokens": 255}, "together they exceed the model's 256"),
        ("a", {"temperature": -1.0}, "temperature is -1"),
        ("a", {"top_p": 0.0}, "top_p is 0"),
    ],
)
def test_a_request_beyond_the_limits_is_refused_with_the_reason(
    lab: Lab, released: Any, prompt: Any, options: dict[str, Any], reason: str
) -> None:
    with TritonClient(lab.grpc) as client:
        inputs = asked("a", **options) | {"prompt": np.array([[prompt]], dtype=object)}
        with pytest.raises(ServerFailed, match=reason):
            client.infer(NAME, SIGNATURE, inputs)
        assert client.infer(NAME, SIGNATURE, asked("a", max_tokens=2))["tokens"].item() == 2


def test_a_client_that_leaves_harms_no_other(lab: Lab, released: Any, service: Any) -> None:
    """Others are answered meanwhile, and no request stays under way."""
    request = streaming.request_of(NAME, SIGNATURE, asked("a", max_tokens=250, temperature=1.0, seed=3))
    first = threading.Event()

    def leave() -> None:
        for _ in streaming.pieces(service, request, SIGNATURE, 60):
            first.set()
            return

    leaver = threading.Thread(target=leave)
    leaver.start()
    assert first.wait(30)
    assert told(pieces(service, "a", max_tokens=4, temperature=0))[2] == 4
    leaver.join()
    until(lambda: pending(lab) == 0)


def test_a_flood_of_requests_is_refused_beyond_the_limit_and_the_rest_is_answered(lab: Lab, service: Any) -> None:
    request = streaming.request_of(NAME, SIGNATURE, asked("a", max_tokens=16, temperature=0))
    ended, refused = 0, 0
    for answer in service.ModelStreamInfer(iter([request] * 700), timeout=120):
        last = answer.infer_response.parameters["triton_final_response"].bool_param
        ended += bool(answer.error_message) or last
        refused += "512 requests in progress or waiting, its limit: try again later" in answer.error_message
    assert ended == 700
    assert 0 < refused <= 700 - 512
    assert told(pieces(service, "a", max_tokens=4, temperature=0))[2] == 4


def test_a_version_that_generates_too_slowly_is_refused_and_the_one_before_serves_on(
    lab: Lab, released: Any, service: Any
) -> None:
    before = told(pieces(service, "a", max_tokens=8, temperature=0))
    spec = SPEC.replace("tokens_per_s: 0.01", "tokens_per_s: 10000000")

    def log_model(**options: Any) -> Any:
        return lab.mlflow.transformers.log_model(released, input_example=PROMPTS, **options)

    report = lab.wait(NAME, lab.log(NAME, log_model, spec=spec), seconds=400)
    assert report.exit_code == 20
    checks = {check.name: check for check in report.checks}
    assert checks["tokens"].verdict is Outcome.FAIL
    assert checks["time to first token"].verdict is Outcome.PASS
    assert checks["throughput against the champion"].measured is not None
    assert told(pieces(service, "a", max_tokens=8, temperature=0)) == before


@pytest.fixture(scope="module")
def api(lab: Lab, released: Any) -> Iterator[Any]:
    """OpenAI's own client of `shiplift openai`."""
    openai = pytest.importorskip("openai")
    url = f"http://127.0.0.1:{free_port()}"
    words = ["--home", str(lab.home), "openai", "--port", url.rsplit(":", 1)[1]]
    command = [sys.executable, "-m", "shiplift.pipelines.commands.app", *words]
    with (
        subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process,
        httpx.Client(trust_env=False, timeout=60) as http,
    ):

        def answers() -> bool:
            try:
                return http.get(f"{url}/healthz").is_success
            except httpx.TransportError:
                assert process.poll() is None, process.stderr and process.stderr.read()
                return False

        try:
            until(answers)
            yield openai.OpenAI(base_url=f"{url}/v1", api_key="unused", http_client=http, max_retries=0)
        finally:
            process.send_signal(signal.SIGINT)
            assert process.wait(timeout=30) == 0
        assert process.stderr is not None
        assert f"{url}/v1 serves {NAME}" in process.stderr.read()


def test_openai_s_client_gets_the_same_text_streamed_or_not(released: Any, api: Any) -> None:
    assert [each.id for each in api.models.list()] == [NAME]
    expected = {prompt: original(released, prompt, 12) for prompt in PROMPTS}
    answer = api.completions.create(model=NAME, prompt=PROMPTS, max_tokens=12, temperature=0)
    assert [each.text for each in answer.choices] == [expected[prompt] for prompt in PROMPTS]
    ended = [each.finish_reason for each in answer.choices]
    assert set(ended) <= {"length", "stop"}
    assert answer.usage.prompt_tokens == sum(len(released.tokenizer(prompt).input_ids) for prompt in PROMPTS)
    least = 12 * ended.count("length") + ended.count("stop")
    assert least <= answer.usage.completion_tokens <= 12 * len(PROMPTS)
    parts = list(api.completions.create(model=NAME, prompt=PROMPTS[1], max_tokens=12, temperature=0, stream=True))
    assert len(parts) > 3
    assert "".join(part.choices[0].text for part in parts) == expected[PROMPTS[1]]


def say(api: Any, *messages: tuple[str, str], **options: Any) -> Any:
    said = [{"role": role, "content": text} for role, text in messages]
    return api.chat.completions.create(model=NAME, messages=said, temperature=0, max_tokens=12, **options)


def test_a_conversation_is_answered_as_transformers_does_streamed_or_not(released: Any, api: Any) -> None:
    told = (("system", "be brief"), ("user", "the crane"), ("assistant", " lifts"), ("user", "ships é"))
    messages = [{"role": role, "content": text} for role, text in told]
    ids = released.tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_tensors="pt").input_ids
    written = released.model.generate(ids, attention_mask=ids * 0 + 1, do_sample=False, max_new_tokens=12)
    expected = released.tokenizer.decode(written[0, ids.shape[1] :], skip_special_tokens=True)
    answer = say(api, *told)
    assert (answer.choices[0].message.role, answer.choices[0].message.content) == ("assistant", expected)
    assert answer.usage.prompt_tokens == ids.shape[1]
    parts = list(say(api, *told, stream=True))
    assert "".join(part.choices[0].delta.content or "" for part in parts) == expected


@pytest.mark.parametrize(("word", "why"), [("forever", "after 2 s, its limit"), ("everything", "MiB|MemoryError")])
def test_a_template_that_never_ends_or_takes_all_memory_fails_its_own_request(api: Any, word: str, why: str) -> None:
    import openai

    before = say(api, ("user", "a")).choices[0].message.content
    with pytest.raises((openai.InternalServerError, openai.BadRequestError), match=why):
        say(api, ("user", word))
    assert api.completions.create(model=NAME, prompt="a", max_tokens=2).choices
    until(lambda: answered(api) == before)


def answered(api: Any) -> str:
    """What the model says, or why it does not yet: the process that renders starts again."""
    import openai

    try:
        return str(say(api, ("user", "a")).choices[0].message.content)
    except openai.InternalServerError as error:
        return str(error)


def test_openai_s_client_raises_its_own_errors(api: Any) -> None:
    import openai

    with pytest.raises(openai.NotFoundError, match=f"those that do: {NAME}"):
        api.completions.create(model="nobody", prompt="a")
    with pytest.raises(openai.BadRequestError, match="together they exceed the model's 256"):
        api.completions.create(model=NAME, prompt="ships carry", max_tokens=255)
    with pytest.raises(openai.BadRequestError, match="there are no tools"):
        say(api, ("tool", "a"))
    drawn = api.completions.create(model=NAME, prompt="a", max_tokens=12, temperature=1.5, n=4)
    assert len({each.text for each in drawn.choices}) > 1


def test_a_client_of_openai_s_api_that_leaves_harms_no_other(lab: Lab, api: Any) -> None:
    stream = api.completions.create(model=NAME, prompt="a", max_tokens=250, temperature=1.0, seed=3, stream=True)
    assert next(iter(stream)).choices
    stream.close()
    until(lambda: pending(lab) == 0)


def pending(lab: Lab) -> float:
    text = httpx.get(lab.site.place.metrics, trust_env=False).text  # type: ignore[union-attr]
    (count,) = [n for name, _, n in samples_of(text, NAME) if name == "nv_inference_pending_request_count"]
    return float(count)
