"""What the page costs in a large registry: calls of the registry, and files that are read, for each view."""

import json
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from starlette.testclient import TestClient

from shiplift.pipelines.engines.local import stack
from shiplift.pipelines.engines.local.engine import LocalEngine
from shiplift.pipelines.page.app import create_app
from shiplift.pipelines.page.asking import AnswerCache
from shiplift.runtime.host.processes import identify
from shiplift.runtime.serving.machine import served
from tests.unit.examples import package
from tests.unit.pipelines.page.fakes import HOST, LOCAL

VERSIONS = 20


def name_of(number: int) -> str:
    return f"model-{number:04}"


@contextmanager
def registry(models: int, versions: threading.Event | None = None) -> Iterator[tuple[str, list[str]]]:
    """A registry over HTTP that has models with 20 versions, and the paths that it was asked for.

    It answers about versions when `versions` is set.
    """
    asked: list[str] = []

    def version(name: str, number: int) -> dict[str, Any]:
        return {"name": name, "version": str(number), "creation_timestamp": 1, "status": "READY", "source": "s3://m"}

    def answer(path: str, query: dict[str, list[str]]) -> dict[str, Any]:
        if path.endswith("/registered-models/search"):
            named = map(name_of, range(models))
            return {
                "registered_models": [{"name": name, "latest_versions": [version(name, VERSIONS)]} for name in named]
            }
        if path.endswith("/model-versions/search"):
            if versions:
                versions.wait(60)
            name = query["filter"][0].partition("'")[2].rstrip("'")
            return {"model_versions": [version(name, number) for number in range(1, VERSIONS + 1)]}
        return {"registered_model": {"aliases": [{"alias": "champion", "version": str(VERSIONS)}]}}

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            parts = urlsplit(self.path)
            asked.append(parts.path)
            body = json.dumps(answer(parts.path, parse_qs(parts.query))).encode()
            self.send_response(200)
            self.send_header("content-length", str(len(body)))
            self.send_header("content-type", "application/json")
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}", asked
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def stack_of(home: Path, address: str) -> None:
    """Notes a stack in a home that has that registry, and runs as this process."""
    ports = dict.fromkeys(("mlflow_port", "receiver_port", "http_port", "grpc_port", "metrics_port"), 0)
    running = stack.Stack(
        **ports,
        registry_uri=address,
        server_environment="",
        cache_mb=0,
        rate_limiter=False,
        sweep_s=3600,
        since=0,
        processes=dict.fromkeys(stack.NAMES, identify(os.getpid())),
    )
    (home / "stack.json").write_text(running.model_dump_json())


def page_of(home: Path, address: str) -> TestClient:
    """The page of such a home."""
    stack_of(home, address)
    app = create_app(LocalEngine(home), LOCAL, asking=AnswerCache(fresh_s=0, patience_s=60, slow_s=60))
    return TestClient(app, base_url=f"http://{HOST}")


def costs(
    home: Path, models: int, views: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> dict[str, tuple[int, int]]:
    """For each view, how often it asks the registry, and how many records of what serves it reads."""
    read: list[str] = []
    home.mkdir()
    for number in range(models):
        served.note_served(home, package(model=name_of(number), version=VERSIONS))
    with registry(models) as (address, asked), monkeypatch.context() as changed:
        changed.setattr(served, "_file", counting(served._file, read))
        page, found = page_of(home, address), {}
        for view in views:
            asked.clear()
            read.clear()
            answer = page.get(view)
            assert answer.status_code == 200, answer.text
            found[view] = (len(asked), len(read))
    return found


def counting(function: Callable[..., Any], called: list[str]) -> Callable[..., Any]:
    def counted(home: Path, model: str) -> Any:
        called.append(model)
        return function(home, model)

    return counted


def test_views_ask_the_registry_as_often_for_many_models_as_for_few(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shiplift.pipelines.page.views._TRENDS_S", 60)
    views = ("/", "/?find=model-0001", f"/model?name={name_of(1)}")
    few, many = (costs(tmp_path / str(models), models, views, monkeypatch) for models in (25, 75))
    assert [few[view][0] for view in views] == [many[view][0] for view in views]
    assert many["/"][1] <= 75  # what serves is a large record: each is read once
    assert many[views[-1]][1] == few[views[-1]][1]


def test_the_first_page_does_not_wait_for_reports_that_only_the_registry_has(tmp_path: Path) -> None:
    versions = threading.Event()
    with registry(30, versions) as (address, asked):
        page = page_of(tmp_path, address)
        try:
            assert name_of(1) in page.get("/").text
        finally:
            versions.set()
    assert any(path.endswith("/model-versions/search") for path in asked)
