"""What a client gives up is not a failure of the model, and neither ends the server nor fills its memory."""

import random
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
import tritonclient.grpc as triton

from shiplift.runtime.measure.cancellations import cancelled
from tests.integration.conftest import until
from tests.integration.test_load_inputs import TOKENS, all_lengths_but, served

pytestmark = pytest.mark.integration
REFUSED = 3  # the length of a text that the model fails on
CLIENTS = 16
LONG = 50_000  # tokens, of 8 bytes


def text(length: int) -> list[Any]:
    tensor = triton.InferInput("x", [1, length], "INT64")
    tensor.set_data_from_numpy(np.ones((1, length), np.int64))
    return [tensor]


def give_up(address: str, most: int) -> None:
    """Asks with deadlines near the model's latency until `most` requests were late; no other failure is accepted."""
    late: list[str] = []

    def ask() -> None:
        tokens = text(LONG)
        with triton.InferenceServerClient(address) as client:
            while len(late) < most:
                try:
                    client.infer("m", tokens, client_timeout=random.uniform(0.001, 0.02))
                except triton.InferenceServerException as error:
                    late.append(error.status())

    with ThreadPoolExecutor(CLIENTS) as clients:
        for client in [clients.submit(ask) for _ in range(CLIENTS)]:
            client.result()
    assert set(late) == {"StatusCode.DEADLINE_EXCEEDED"}


def resident_mib(process: int) -> float:
    """The memory of a process and its children."""
    whole = psutil.Process(process)
    return sum(part.memory_info().rss for part in (whole, *whole.children(recursive=True))) / 2**20


def test_clients_that_give_up_are_no_failures_of_the_model_and_neither_end_the_server_nor_fill_its_memory(
    tmp_path: Path,
) -> None:
    example = np.ones((1, 8), np.int64)
    with served(tmp_path, all_lengths_but(REFUSED), TOKENS, example) as (server, client):
        with pytest.raises(triton.InferenceServerException):
            triton.InferenceServerClient(server.grpc).infer("m", text(REFUSED))
        until(lambda: client.failures("m") == 1)  # Triton counts after it has answered
        assert cancelled(server.metrics, "m") == 0
        give_up(server.grpc, 600)
        before = resident_mib(server.process.pid)
        give_up(server.grpc, 3000)
        assert client.ready("m")
        # As published, if it lives: 80 and more. On a busy machine the last requests are still in memory at first.
        until(lambda: resident_mib(server.process.pid) - before < 48)
        until(lambda: client.failures("m") == 1 + cancelled(server.metrics, "m"))
        assert cancelled(server.metrics, "m") > 0
        assert cancelled(server.metrics, "another") == 0


def test_without_metrics_every_failure_counts() -> None:
    assert cancelled("http://127.0.0.1:9/metrics", "m") == 0
    assert cancelled("", "m") == 0
