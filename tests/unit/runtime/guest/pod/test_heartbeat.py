"""The heartbeat's conclusions from a server's metrics, and its answers in a pod."""

import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import httpx
import pytest

from shiplift.runtime.guest.pod import heartbeat
from shiplift.runtime.guest.pod.heartbeat import Counters, Heartbeat, Probe, counters
from shiplift.runtime.host.processes import free_port
from tests.integration.conftest import until

METRICS = """
# TYPE nv_inference_request_success counter
nv_inference_request_success{model="digits",version="3"} 7
nv_inference_request_success{model="digits",version="4"} 5
nv_inference_request_failure{model="digits",reason="BACKEND",version="4"} 2
nv_inference_pending_request_count{model="digits",version="4"} 3
nv_inference_count{model="digits",version="4"} 1000
shiplift_stuck_executions{model="other"} 1
shiplift_stopped_executions_total{model="other"} 4
nv_cpu_utilization 0.5
"""


def test_the_counters_of_a_model_are_summed_over_its_versions() -> None:
    assert counters(METRICS) == {"digits": Counters(waiting=3, ended=14), "other": Counters(stuck=1, stopped=4)}


def test_what_is_no_metric_is_ignored() -> None:
    assert counters("") == counters("<html>not metrics</html>") == {}


def test_a_model_is_stuck_at_once_if_an_execution_did_not_stop() -> None:
    assert Heartbeat().stuck({"m": Counters(stuck=1)}, 0) == {"m": "an execution did not stop at its time limit"}


def test_a_model_that_answers_nobody_while_requests_wait_is_stuck_after_the_patience() -> None:
    beat = Heartbeat(10)
    waiting = {"m": Counters(waiting=2, ended=5)}
    assert not beat.stuck(waiting, 0)
    assert not beat.stuck(waiting, 9)
    assert beat.stuck(waiting, 11) == {"m": "2 requests wait, and none was answered for 11 s"}
    assert not beat.stuck({"m": Counters(waiting=2, ended=6)}, 12)


def test_a_version_is_stuck_while_another_one_answers() -> None:
    beat = Heartbeat(10)

    def metrics(answered: int) -> dict[str, Counters]:
        return counters(METRICS.replace('version="3"} 7', f'version="3"}} {answered}'))

    assert set(beat.stuck(metrics(7), 0)) == {"other"}
    assert beat.stuck(metrics(70), 11) == {
        "digits": "3 requests wait, and none was answered for 11 s",
        "other": "an execution did not stop at its time limit",
    }


@pytest.mark.parametrize("count", [Counters(ended=5), Counters(waiting=9, ended=6)])
def test_an_idle_model_and_a_slow_one_are_not_stuck(count: Counters) -> None:
    beat = Heartbeat(10)
    assert not beat.stuck({"m": Counters(waiting=1, ended=5)}, 0)
    assert not beat.stuck({"m": count}, 9)
    assert not beat.stuck({"m": Counters(waiting=1, ended=count.ended)}, 18)


def test_a_model_that_was_unloaded_is_forgotten() -> None:
    beat = Heartbeat(10)
    waiting = {"m": Counters(waiting=1)}
    assert not beat.stuck(waiting, 0)
    assert not beat.stuck({}, 5)
    assert not beat.stuck(waiting, 11)


class Triton(BaseHTTPRequestHandler):
    """A server's metrics and health, as this test says; a real server is stuck in `tests/integration`."""

    text = METRICS

    def do_GET(self) -> None:
        body = self.text.encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def triton(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    with ThreadingHTTPServer(("127.0.0.1", 0), Triton) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        monkeypatch.setattr(heartbeat, "METRICS", server.server_address[1])
        monkeypatch.setattr(heartbeat, "HTTP", server.server_address[1])
        yield
        server.shutdown()


@pytest.mark.usefixtures("triton")
def test_the_probe_names_the_stuck_model() -> None:
    probe = Probe(Heartbeat())
    probe.look()
    assert probe.problem == "other: an execution did not stop at its time limit"


def test_a_server_that_does_not_answer_is_a_problem_once_it_had_its_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(heartbeat, "METRICS", free_port())
    probe = Probe(Heartbeat())
    probe.look()
    assert not probe.problem
    monkeypatch.setattr(heartbeat, "_SILENCE_S", -1.0)
    probe.look()
    assert probe.problem.startswith("Triton has not answered for ")


def test_a_copy_of_the_file_answers_the_kubelet_without_our_packages(tmp_path: Path) -> None:
    copied = shutil.copyfile(heartbeat.__file__, tmp_path / "heartbeat.py")
    port = free_port()
    process = subprocess.Popen([sys.executable, "-I", "-S", copied, f"127.0.0.1:{port}"])
    try:
        answer = until(lambda: asked(port))
    finally:
        process.kill()
        process.wait()
    assert (answer.status_code, answer.text) == (200, "ok")


def asked(port: int) -> httpx.Response | None:
    try:
        return httpx.get(f"http://127.0.0.1:{port}/", trust_env=False)
    except httpx.HTTPError:
        return None
