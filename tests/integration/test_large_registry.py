"""The live page with a thousand models of twenty versions, in MLflow on SQLite."""

import time
from pathlib import Path

import pytest
from starlette.testclient import TestClient

from benchmarks import big_registry
from shiplift.pipelines.engines.local.engine import LocalEngine
from shiplift.pipelines.page.app import create_app
from shiplift.runtime.serving.machine import served
from tests.integration.conftest import until
from tests.unit.examples import package
from tests.unit.pipelines.page.fakes import HOST, LOCAL
from tests.unit.pipelines.page.test_large_registry import stack_of

pytestmark = [pytest.mark.integration, pytest.mark.slow]
MODELS = 1000


def test_the_page_shows_a_thousand_models_of_twenty_versions_while_the_registry_takes_its_time(tmp_path: Path) -> None:
    """MLflow takes seconds to list them. Views that were seen before are there at once, for little work of the page."""
    with big_registry.database("sqlite", tmp_path) as uri, big_registry.mlflow_server(uri, tmp_path) as registry:
        big_registry.fill(uri, 0, MODELS)
        big_registry.release_folders(tmp_path, 0, MODELS)
        for number in range(MODELS):
            served.note_served(tmp_path, package(model=big_registry.name_of(number), version=big_registry.VERSIONS))
        stack_of(tmp_path, registry)
        with TestClient(create_app(LocalEngine(tmp_path), LOCAL), base_url=f"http://{HOST}") as page:
            until(
                lambda: page.get("/").status_code == 200, seconds=300
            )  # until then it says that it tries again by itself
            model = big_registry.name_of(MODELS - 1)
            until(lambda: page.get(f"/model?name={model}").status_code == 200, seconds=300)
            for view, shown in (
                ("/", f"{MODELS} models"),
                ("/?page=40", model),
                (f"/?find={model}", model),
                (f"/model?name={model}", f"version-{big_registry.VERSIONS}"),
            ):
                before = time.process_time()
                answer = page.get(view)
                assert answer.status_code == 200
                assert shown in answer.text
                assert time.process_time() - before < 1
