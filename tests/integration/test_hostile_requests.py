"""No request ends the server or fills its memory: the worst ones, then a good one. `make attack` tries thousands."""

import gzip
from pathlib import Path

import pytest
from tritonclient.grpc import InferenceServerClient
from tritonclient.utils import InferenceServerException

from shiplift.runtime.serving.triton.client import key_header
from tests.attack.clients import target
from tests.attack.grpc_requests import infer
from tests.attack.http_requests import GOOD, INPUT, as_json, bomb, http
from tests.integration.conftest import until

pytestmark = pytest.mark.integration
COMPRESSED = {"Content-Encoding": "gzip"}


def shaped(*shape: int) -> bytes:
    return http(as_json({"inputs": [{**INPUT, "shape": shape}]}))


def test_the_server_refuses_what_would_end_it_or_fill_its_memory_and_serves_on(tmp_path: Path) -> None:
    worst = {
        "nested 400000 levels deep": http(b"[" * 400_000),
        "nested 129 levels deep": http(b"[" * 129 + b"]" * 129),
        "at most 128 are read": http(gzip.compress(b'{"a":' * 400_000), headers=COMPRESSED),
        "is negative or too large": shaped(2**32, 2**32),
        "has 4294967296 values, and the request has fewer": shaped(1, 2**32),
        "over 4096 inputs": http(as_json({**GOOD, "parameters": {f"p{at}": 1 for at in range(5000)}})),
        "has 40 MiB, at most 32": http(bomb(40), headers=COMPRESSED),
    }
    with target(tmp_path) as attacked:
        assert attacked.serves
        before = attacked.memory_mib
        for message, request in worst.items():
            assert message.encode() in attacked.http(request), message
            assert attacked.serves
        assert attacked.grpc(("ModelInfer", infer(input_shape=[2**62, 4]).SerializeToString())) == "INVALID_ARGUMENT"
        assert attacked.grpc(("ModelInfer", infer(input_shape=[1] * 65).SerializeToString())) == "INVALID_ARGUMENT"
        loads, key = InferenceServerClient(attacked.server.grpc), key_header(attacked.server.key)
        with pytest.raises(InferenceServerException, match="unexpected error on creating Triton parameter"):
            loads.load_model("n", headers=key, config="{}", files={"file:1/model.py": b"x = 1"})
        with pytest.raises(InferenceServerException, match="restricted"):
            loads.unload_model("m")
        for closed in ("/v2/repository/index", "/v2/repository/models/m/unload", "/v2/logging", "/v2/trace/setting"):
            assert b" 403 " in attacked.http(http(b"{}", path=closed)).split(b"\r\n")[0]
        assert attacked.serves
        until(lambda: attacked.memory_mib - before < 64)
