"""Captured requests: what clients send to a real server over gRPC and HTTP ends up in files, and nothing else."""

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import httpx
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from shiplift.runtime.base.errors import NotFound
from shiplift.runtime.capture.elsewhere import RowsElsewhere
from shiplift.runtime.capture.folder import CaptureFolder
from shiplift.runtime.capture.forwarding import Captured, Forwarder
from shiplift.runtime.capture.parts import HASHES, READER, SENDER, Sender
from shiplift.runtime.capture.writer import CaptureWriter
from shiplift.runtime.confinement.watch import worker
from shiplift.runtime.host.processes import free_port, own_module
from shiplift.runtime.records.capturing import Capturing
from shiplift.runtime.serving.machine.server import Server, private_server
from shiplift.runtime.serving.operator.resources import RevisionSpec, revision_object
from shiplift.runtime.serving.triton.client import OWN_REQUESTS, TritonClient
from shiplift.runtime.serving.triton.command_line import Features
from tests.integration.backends import ENVIRONMENT, ask, lookup, put
from tests.integration.conftest import ONE_FORM, Lab, digits, until
from tests.unit.api_server import running
from tests.unit.examples import package

pytestmark = pytest.mark.integration
ALL = {"m": Capturing(share=1.0, limit_bytes=10**9, retention_s=86400)}


@contextmanager
def captured_server(work: Path) -> Iterator[Server]:
    put(work, lookup())
    features = Features(cache_mb=0, captures=True)
    with (
        private_server(ENVIRONMENT, work / "models", features, log=work / "log") as server,
        TritonClient(server.grpc, repository_key=server.key) as client,
    ):
        client.load("m")
        yield server


def rings(server: Server) -> Path:
    return Path(f"/proc/{worker(server.process.pid)}/root/tmp/shiplift-capture")


def rows(work: Path) -> pa.Table:
    table = CaptureFolder(work / "kept" / "m").read()
    return table if table is not None else pa.table({})


def test_requests_over_grpc_and_http_are_kept_with_their_answers(tmp_path: Path) -> None:
    with captured_server(tmp_path) as server:
        writer = CaptureWriter(tmp_path / "kept", "secret", flush_s=0)
        assert until(lambda: _sees(writer, server, tmp_path))
        before = rows(tmp_path).num_rows
        ask(server, {"x": np.array([[1], [2]], np.int64)})
        body = {"inputs": [{"name": "x", "datatype": "INT64", "shape": [1, 1], "data": [0]}]}
        assert httpx.post(f"http://{server.http}/v2/models/m/infer", json=body).status_code == 200
        with TritonClient(server.grpc, repository_key=server.key, request_id=OWN_REQUESTS) as client:
            client.infer("m", client.signature("m"), {"x": np.array([[1]], np.int64)})
        with pytest.raises(Exception, match=r"(?i)bounds"):
            ask(server, {"x": np.array([[9]], np.int64)})
        assert until(lambda: _look(writer, server) or rows(tmp_path).num_rows >= before + 4)
        table = rows(tmp_path).slice(before)
        assert table.column("input/x").to_pylist() == [1, 2, 0, 9]
        assert table.column("output/y").to_pylist()[:3] == ask_all(server, [1, 2, 0])
        assert table.column("output/y").to_pylist()[3] is None
        assert table.column("failed").to_pylist() == [False, False, False, True]
        writer.close()


def test_a_full_ring_drops_and_counts_and_a_request_is_answered_all_the_same(tmp_path: Path) -> None:
    with captured_server(tmp_path) as server:
        writer = CaptureWriter(tmp_path / "kept", "secret", capacity=4096, flush_s=3600)
        assert until(lambda: _look(writer, server) or _counted(tmp_path, server, writer) > 0)
        for _ in range(100):
            ask(server, {"x": np.array([[1]], np.int64)})
        _look(writer, server)
        state = CaptureFolder(tmp_path / "kept" / "m").state()
        assert state.dropped > 0
        assert state.captured >= 8


def ask_all(server: Server, values: list[int]) -> list[float]:
    return [float(ask(server, {"x": np.array([[each]], np.int64)}).as_numpy("y")[0, 0]) for each in values]


def _look(writer: CaptureWriter, server: Server) -> bool:
    writer.look(rings(server), ALL)
    return False


def _sees(writer: CaptureWriter, server: Server, work: Path) -> bool:
    """Whether the server has seen the ring, which it looks for a few times a second."""
    ask(server, {"x": np.array([[1]], np.int64)})
    _look(writer, server)
    return bool(rows(work).num_rows > 0)


def _counted(work: Path, server: Server, writer: CaptureWriter) -> int:
    ask(server, {"x": np.array([[1]], np.int64)})
    _look(writer, server)
    return CaptureFolder(work / "kept" / "m").state().captured


@pytest.mark.slow
def test_what_a_server_captured_is_kept_by_another_process_which_a_cluster_s_pods_reach(tmp_path: Path) -> None:
    own = package(model="m", capturing=ALL["m"])
    digest, port = own.repository.sha256, free_port()
    revision = RevisionSpec(artifacts_uri="s3://x", package=own.model_dump(mode="json"))
    tokens = {SENDER: "send", READER: "read", HASHES: "hashes"}
    with running() as api, captured_server(tmp_path) as server:
        api.objects["tritonrevisions"]["m-2"] = revision_object("m-2", "models", revision)
        command = own_module("shiplift.pipelines.daemons.capture_keeper", "--serving-namespace", "models")
        command += ["--folder", str(tmp_path / "kept"), "--port", str(port)]
        env = {**os.environ, **tokens, "KUBECONFIG": str(api.kubeconfig(tmp_path))}
        with subprocess.Popen(command, env=env) as keeper, httpx.Client(base_url=f"http://127.0.0.1:{port}") as client:
            try:
                until(lambda: _healthy(client), seconds=60)
                models = [Captured(model="m", package=digest, share=1.0)]
                forwarder = Forwarder(rings(server), models, Sender(str(client.base_url), "send"), flush_s=0)
                elsewhere = RowsElsewhere(client, "read")
                until(lambda: _forwarded(server, forwarder, elsewhere) > 0)
                before = elsewhere.summary("m").rows
                ask(server, {"x": np.array([[1], [2]], np.int64)})
                assert until(lambda: forwarder.look(last=True) and elsewhere.summary("m").rows == before + 2)
                elsewhere.export("m", tmp_path / "rows.parquet")
                table = pq.read_table(tmp_path / "rows.parquet").slice(before)
                assert table.column("input/x").to_pylist() == [1, 2]
                assert len(set(table.column("request").to_pylist())) == 1
            finally:
                keeper.terminate()


def _healthy(client: httpx.Client) -> bool:
    with suppress(httpx.TransportError):
        return client.get("/healthz").status_code == 200
    return False


def _forwarded(server: Server, forwarder: Forwarder, elsewhere: RowsElsewhere) -> int:
    """Asks a row, until the server has seen the ring, and forwards what it captured; the rows that are kept then."""
    ask(server, {"x": np.array([[1]], np.int64)})
    forwarder.look()
    with suppress(NotFound):  # until the first part
        return elsewhere.summary("m").rows
    return 0


@pytest.mark.slow
def test_a_released_model_is_captured_and_a_persons_rows_are_deleted(lab: Lab, tmp_path: Path) -> None:
    model, spec = "kept", f"{ONE_FORM}capture: {{share: 1, key: input, hash: [input]}}\n"
    assert lab.wait(model, lab.log_classifier(model, spec=spec)).exit_code == 0
    rows_of = digits()[0][:3]
    assert until(lambda: lab.ask(model, {"input": rows_of}) is not None and _kept(lab, model) >= 3)
    kept = lab.engine.captured(model)
    assert (kept.on, kept.share, kept.problem) == (True, 1.0, "")
    file = tmp_path / "rows.parquet"
    assert lab.engine.export_captured(model, file).rows >= 3
    assert {"input/input", "at", "version"} <= set(pq.read_schema(file).names)
    assert lab.engine.delete_captured(model, "nobody").deleted == 0


def _kept(lab: Lab, model: str) -> int:
    return lab.engine.captured(model).rows
