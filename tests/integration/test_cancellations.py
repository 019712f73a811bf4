"""What a client gives up is no failure of the model: Triton's own counters tell the two apart."""

import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc as triton

from shiplift.runtime.measure.cancellations import cancelled
from tests.integration.conftest import until
from tests.integration.test_load_inputs import TOKENS, all_lengths_but, served

pytestmark = pytest.mark.integration
REFUSED = 3  # the length of a text that the model fails on
MOST = 20  # rounds


def text(length: int) -> list[Any]:
    tensor = triton.InferInput("x", [1, length], "INT64")
    tensor.set_data_from_numpy(np.ones((1, length), np.int64))
    return [tensor]


def test_requests_that_their_client_cancelled_are_not_the_model_s_failures(tmp_path: Path) -> None:
    example = np.ones((1, 8), np.int64)
    with served(tmp_path, all_lengths_but(REFUSED), TOKENS, example) as (server, client):
        asking = triton.InferenceServerClient(server.grpc)
        with pytest.raises(triton.InferenceServerException):
            asking.infer("m", text(REFUSED))
        until(lambda: client.failures("m") == 1)  # Triton counts after it has answered
        assert cancelled(server.metrics, "m") == 0
        ended = threading.Semaphore(0)
        for _ in range(MOST):  # some are answered before they are cancelled
            calls = [asking.async_infer("m", text(200_000), lambda **_: ended.release()) for _ in range(64)]
            for call in calls:
                call.cancel()
            for _ in calls:
                assert ended.acquire(timeout=30)
            if cancelled(server.metrics, "m"):
                break
        until(lambda: client.failures("m") == 1 + cancelled(server.metrics, "m"))
        assert cancelled(server.metrics, "m") > 0
        assert cancelled(server.metrics, "another") == 0


def test_without_metrics_every_failure_counts() -> None:
    assert cancelled("http://127.0.0.1:9/metrics", "m") == 0
    assert cancelled("", "m") == 0
