"""A model that generates text has a process of its own: its crash, its hunger and its hang cost its own requests.

The engine is one that misbehaves when it is asked to; the code around it is the package's, in the real server.
"""

import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tritonclient.utils import InferenceServerException

from shiplift.runtime.base.errors import ServerFailed
from shiplift.runtime.model.generation.signature import SIGNATURE
from shiplift.runtime.model.python.bundle import write_bundle
from shiplift.runtime.serving import streaming
from shiplift.runtime.serving.machine.quarantine import crashed
from shiplift.runtime.serving.machine.server import Server
from shiplift.runtime.serving.packaging import generation_backend as backend
from tests.generating import tokenizer
from tests.integration.backends import put, server_for, two_by_two
from tests.integration.conftest import until
from tests.integration.test_compartments import steady
from tests.integration.test_hosted_compartments import workers

pytestmark = [pytest.mark.integration, pytest.mark.slow]
ENGINE = """
import os, time

class GenerationEngine:
    def __init__(self, folder, settings, *, sequences, tokens, options):
        self.runs = {}
        if (folder / "slow").exists():
            time.sleep(600)

    busy = property(lambda self: bool(self.runs))

    def start(self, number, ask):
        self.runs[number] = [ask, 0]

    def drop(self, number):
        self.runs.pop(number, None)

    def step(self):
        for number, run in list(self.runs.items()):
            ask, at = run
            if ask.seed == 1:
                os.abort()
            if ask.seed == 2:
                kept = [bytearray(16 << 20) for _ in range(1000)]
            if ask.seed == 3:
                time.sleep(600)
            if ask.seed == 4:
                self.attack()
            run[1] += 1
            if run[1] == ask.max_tokens:
                del self.runs[number]
            yield number, [5], "length" if run[1] == ask.max_tokens else "", ""

    def attack(self):
        import socket
        neighbour = __file__.rpartition("/m/")[0] + "/neighbour"
        tries = [os.fork, socket.socket, lambda: os.listdir(neighbour), lambda: os.listdir("/proc"),
                 lambda: os.kill(os.getppid(), 0), lambda: open("/tmp/file", "w"), lambda: os.execv("/bin/true", ["x"])]
        for attempt in tries:
            try:
                attempt()
            except OSError:
                continue
            raise ValueError("the attack succeeded")
"""
CONFIG = """
backend: "python" max_batch_size: 16 model_transaction_policy { decoupled: true } dynamic_batching {}
instance_group { count: 1 kind: KIND_CPU }
%s
"""


def config(**values: Any) -> str:
    lines = [
        f'{side} {{ name: "{spec.name}" data_type: TYPE_{"STRING" if spec.datatype == "BYTES" else spec.datatype} '
        f"dims: {spec.shape[1]}{' optional: true' if spec.optional else ''} }}"
        for side, specs in (("input", SIGNATURE.inputs), ("output", SIGNATURE.outputs))
        for spec in specs
    ]
    known = {"max_prompt_tokens": 64, "max_tokens": 64, "max_sequences": 8, "request_timeout_ms": 3000} | values
    lines += [f'parameters {{ key: "{key}" value {{ string_value: "{value}" }} }}' for key, value in known.items()]
    return CONFIG % "\n".join(lines)


@contextmanager
def serving(work: Path, **values: Any) -> Iterator[tuple[Server, Any, Any, list[str]]]:
    """A server with the model as `m` (not loaded) and a neighbour under traffic, and how to ask the model."""
    version = work / "models" / "m" / "1"
    version.mkdir(parents=True)
    for file in (backend._MODEL, *backend._CODE, backend._PANICS, backend._HOSTED):
        shutil.copyfile(file, version / ("model.py" if file == backend._MODEL else file.name))
    write_bundle(version, backend._WRITER)
    shutil.copytree(backend._library("tokenizers"), version / "tokenizers", ignore=backend._UNNEEDED)
    (version / "engine.py").write_text(ENGINE)
    tokenizer().backend_tokenizer.save(str(version / "tokenizer.json"))
    settings = '{"context": 128, "stop_ids": [2], "top_k": 0, "repetition_penalty": 1, "temperature": 1, "top_p": 1}'
    (version / "generation.json").write_text(settings)
    (version.parent / "config.pbtxt").write_text(config(**values))
    put(work, two_by_two(), "neighbour")
    with server_for(work) as (server, client), streaming.connected(server.grpc) as stub:
        client.load("neighbour")
        with steady(server) as failures:

            def say(seed: int, tokens: int = 4) -> int:
                asked = {
                    "prompt": np.array([["a"]], dtype=object),
                    "seed": np.array([[seed]], np.int64),
                    "max_tokens": np.array([[tokens]], np.int32),
                }
                request = streaming.request_of("m", SIGNATURE, asked)
                parts = list(streaming.pieces(stub, request, SIGNATURE, 60))
                return int(streaming.whole(SIGNATURE, parts)["tokens"].item())

            yield server, client, say, failures


def back(say: Any) -> bool:
    """Waits until the model's process has started again."""

    def once() -> bool:
        try:
            return bool(say(0) == 4)
        except InferenceServerException as error:
            if "the model's" in str(error):
                return False
            raise

    return bool(until(once, seconds=60))


def test_a_request_that_ends_the_process_is_refused_after_the_second_time_and_the_model_comes_back(
    tmp_path: Path,
) -> None:
    with serving(tmp_path) as (server, client, say, failures):
        client.load("m")
        assert say(0) == 4
        for crashes in (1, 2):
            with pytest.raises(InferenceServerException, match="died of SIGABRT"):
                say(1)
            with pytest.raises(InferenceServerException, match="died of SIGABRT: it starts again in"):
                say(0)
            (found,) = crashed(server.process.pid)
            assert (found.model, found.crashes, found.pause_s) == ("m", crashes, crashes)
            assert back(say)
        with pytest.raises(InferenceServerException, match="died each time it ran this request"):
            say(1)
        assert say(0) == 4
        workers(server)[0].kill()
        assert back(say)
        (found,) = crashed(server.process.pid)
        assert found.finding(time.time()).startswith("quarantined: crashed 3 times")
        assert failures == []


@pytest.mark.parametrize(
    ("seed", "why"), [(2, "the limit is 300 MiB|MemoryError"), (3, "after 3 s, its limit .serving.request_timeout_s")]
)
def test_memory_past_the_limit_and_a_step_that_never_ends_fail_their_own_request(
    tmp_path: Path, seed: int, why: str
) -> None:
    with serving(tmp_path, memory_mb=300) as (_, client, say, failures):
        client.load("m")
        with pytest.raises(InferenceServerException, match=why):
            say(seed)
        assert back(say)
        assert failures == []


def test_the_process_reads_no_other_model_and_starts_nothing(tmp_path: Path) -> None:
    with serving(tmp_path) as (_, client, say, failures):
        client.load("m")
        assert say(4) == 4
        assert failures == []


def test_a_load_that_hangs_ends_at_its_limit(tmp_path: Path) -> None:
    with serving(tmp_path, load_timeout_ms=2000) as (_, client, _say, failures):
        (tmp_path / "models" / "m" / "1" / "slow").touch()
        with pytest.raises(ServerFailed, match="loading the model was stopped after 2 s"):
            client.load("m")
        assert failures == []
