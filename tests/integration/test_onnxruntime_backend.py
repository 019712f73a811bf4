"""The bundled server's own ONNX Runtime backend: what is this engine's alone, its errors."""

from pathlib import Path

import numpy as np
import pytest
from tritonclient.utils import InferenceServerException

from shiplift.runtime.base.errors import ServerFailed
from tests.integration.backends import ask, counts, lookup, put, served, server_for
from tests.integration.conftest import until

pytestmark = pytest.mark.integration


def test_a_request_that_fails_in_the_model_gets_its_error_and_the_next_is_answered(tmp_path: Path) -> None:
    with served(tmp_path, lookup()) as server:
        for _ in range(3):
            with pytest.raises(InferenceServerException, match=r"(?i)out of (data )?bounds"):
                ask(server, {"x": np.array([[9]], np.int64)})
            assert ask(server, {"x": np.array([[2]], np.int64)}).as_numpy("y").tolist() == [[2.0]]
        assert until(lambda: counts(server) == (3, 3))


def test_a_file_that_is_not_a_model_is_refused_and_the_server_keeps_running(tmp_path: Path) -> None:
    put(tmp_path, lookup())
    put(tmp_path, lookup(), "broken")
    (tmp_path / "models" / "broken" / "1" / "model.onnx").write_bytes(b"\x08\x08 no model")
    with server_for(tmp_path) as (server, client):
        with pytest.raises(ServerFailed, match=r"(?i)protobuf|model"):
            client.load("broken")
        client.load("m")
        assert ask(server, {"x": np.array([[3]], np.int64)}).as_numpy("y").tolist() == [[3.0]]
