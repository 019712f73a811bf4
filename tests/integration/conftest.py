"""A real stack for the whole session, and a lab to log small real models with."""

import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from xdist.scheduler import LoadScopeScheduling

from shiplift.pipelines.engines.local import stack
from shiplift.pipelines.engines.local.engine import LocalEngine
from shiplift.pipelines.engines.local.releases import Releases
from shiplift.pipelines.settings import Settings
from shiplift.runtime.base.names import release_name
from shiplift.runtime.records.release import Event, ReleaseReport
from shiplift.runtime.records.request import Request, Trigger
from shiplift.runtime.records.site import Site
from shiplift.runtime.serving.triton.repository_key import key_of
from shiplift.runtime.store.registry.client import Registry, prepare_environment

# One small configuration and short windows: tests are about behaviour, not about figures.
FAST = """
search: {time_budget_s: 2, max_batch: [8], queue_delay_us: [0], instances: [1], threads: [1], window_ms: 100}
load: {concurrency: [1, 4], window_ms: 100, attempts: 1, comparison_rounds: 1, open_loop_s: 0}
slo: {regression: {p99_percent: 1000, throughput_percent: 1000, score: 1}}
"""
JUDGED = f"{FAST}quality: {{min_score: 0.85}}\n"
# In one precision, on one engine: for tests that ask what a release leads to, not how its model is quantized and tuned.
ONE_FORM = f"{FAST}targets: [{{name: cpu, engine: onnxruntime, precisions: [fp32]}}]\n"
# Files that need the stack, in two groups that take equally long. One worker runs a group, so that few stacks are
# started. Those that need a champion are in the first group. A file that is missing here may start a third stack.
STACKS = (
    (
        "test_release",
        "test_bad_input",
        "test_refusals",
        "test_hostile_versions",
        "test_cluster_commands",
        "test_pipeline_release",
        "test_lab",
        "test_adopt",
        "test_answers",
        "test_predict",
        "test_registry_rest",
        "test_webhooks",
        "test_registry_client",
        "test_mlflow_artifacts",
    ),
    ("test_switch", "test_formats", "test_huggingface", "test_scoring", "test_python_models"),
)
# The seconds of CPU that the everyday tests of other files took when last measured; what isn't here counts 4.
SECONDS = {
    "test_pipelines_of_models": 45,
    "test_bundles_in_production": 18,
    "test_backends": 15,
    "test_compartments": 12,
    "test_triton": 11,
    "test_neighbours": 25,
    "test_slow_connections": 8,
}


class Grouped(LoadScopeScheduling):  # type: ignore[misc]
    """`--dist loadgroup`: a group of `STACKS` is run by one worker, and so is any other file, the longest first."""

    def _split_scope(self, nodeid: str) -> str:
        return _group(Path(nodeid.partition("::")[0]).stem)


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Grouped | None:
    if config.getoption("dist") != "loadgroup":
        return None
    config.option.loadscopereorder = False  # not by the number of tests
    return Grouped(config, log)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    ours = {item for item in items if "tests/integration" in str(item.path)}
    for item in ours:
        item.add_marker(pytest.mark.integration)
    items.sort(key=lambda item: _rank(item.path.stem) if item in ours else ())


def _group(file: str) -> str:
    return next((f"stack {number}" for number, files in enumerate(STACKS) if file in files), file)


def _rank(file: str) -> tuple[bool, float, str]:
    """Smaller for what starts earlier."""
    group = _group(file)
    return not group.startswith("stack"), -SECONDS.get(group, 4), group


def until(condition: Callable[[], Any], *, seconds: float = 60, every_s: float = 0.05) -> Any:
    """Waits until a condition returns something true, and returns it."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        value = condition()
        if value:
            return value
        time.sleep(every_s)
    raise AssertionError(f"still waiting after {seconds} s")


def digits() -> tuple[NDArray[Any], NDArray[Any]]:
    """scikit-learn's digits: float32 images (1797, 64) from 0 to 1, and their labels."""
    from sklearn.datasets import load_digits

    data = load_digits()
    return (data.data / 16).astype(np.float32), data.target


@dataclass
class Lab:
    """A running stack, and what its users do with it."""

    home: Path
    running: stack.Stack
    registry: Registry
    mlflow: Any
    fitted: dict[int, Any] = field(default_factory=dict)

    @property
    def site(self) -> Site:
        return stack.site(self.home, self.running)

    @property
    def repository_key(self) -> str:
        """The key that loads and unloads production's models."""
        return key_of(self.home / "production" / "models")

    @property
    def grpc(self) -> str:
        """Production's address, as `host:port`."""
        return f"{stack.HOST}:{self.running.grpc_port}"

    @property
    def engine(self) -> LocalEngine:
        return LocalEngine(self.home)

    @property
    def releases(self) -> Releases:
        return Releases(self.home)

    # --- logging models, as authors do ---

    def log(
        self,
        name: str,
        log_model: Callable[..., Any],
        *,
        spec: str = FAST,
        data: dict[str, NDArray[Any]] | None = None,
        texts: Mapping[str, str] = MappingProxyType({}),
    ) -> int:
        """Calls `log_model(registered_model_name=...)` in a run with a spec, data and texts by path.

        Returns the version number.
        """
        with self.mlflow.start_run():
            for path, text in texts.items():
                self.mlflow.log_text(text, path)
            if spec:
                self.mlflow.log_text(spec, "shiplift/shiplift.yaml")
            if data is not None:
                file = self.home / "validation.npz"
                np.savez(file, **data)  # type: ignore[arg-type]
                self.mlflow.log_artifact(str(file), "shiplift")
            info = log_model(name="model", registered_model_name=name, pip_requirements=[])
        return int(info.registered_model_version)

    def classifier(self, samples: int = 1200) -> Any:
        """A logistic regression on digits, fitted once per number of samples."""
        from sklearn.linear_model import LogisticRegression

        if samples not in self.fitted:
            images, labels = digits()
            self.fitted[samples] = LogisticRegression(max_iter=200).fit(images[:samples], labels[:samples])
        return self.fitted[samples]

    def log_classifier(
        self,
        name: str,
        *,
        samples: int = 1200,
        spec: str = FAST,
        texts: Mapping[str, str] = MappingProxyType({}),
        **changes: Any,
    ) -> int:
        """Logs and registers the classifier with a signature, an input example and a validation set."""
        from mlflow.models import infer_signature

        images, labels = digits()
        model, example = self.classifier(samples), images[:4]
        contract = {"signature": infer_signature(example, model.predict(example)), "input_example": example} | changes

        def log_model(**options: Any) -> Any:
            return self.mlflow.sklearn.log_model(model, **contract, **options)

        data = {"input": images[1200:], "label": labels[1200:]}
        return self.log(name, log_model, spec=spec, data=data, texts=texts)

    @contextmanager
    def unannounced(self) -> Iterator[None]:
        """Versions that are registered meanwhile are not announced by webhooks, so no release of them starts.

        MLflow's server sends the webhooks: what is written to its database directly sends none.
        """
        self.mlflow.set_registry_uri(f"sqlite:///{self.home / 'mlflow' / 'mlflow.db'}")
        try:
            yield
        finally:
            self.mlflow.set_registry_uri(self.running.registry_uri)

    # --- releases ---

    def wait(self, name: str, version: int, spec: str = "", *, seconds: float = 180) -> ReleaseReport:
        """Waits for the release that a registration started; returns its report."""
        release = release_name(name, version, spec)
        until(lambda: self.releases.folder(release).is_dir())
        report = until(lambda: not self.releases.active(release) and self.releases.result(release), seconds=seconds)
        assert isinstance(report, ReleaseReport)
        return report

    def order(self, name: str, version: int, spec: str = "", *, again: bool = False) -> ReleaseReport:
        """Orders a release by hand, and waits for it."""
        accepted = self.engine.order(f"{name}/{version}", spec, again=again, allow_older=False)
        assert until(lambda: not self.engine.under_way(accepted.name), seconds=180)
        return self.engine.result(accepted.name)

    def events(self, name: str, version: int, spec: str = "") -> list[Event]:
        """The events of a release."""
        return self.releases.events(release_name(name, version, spec))[0]

    def ask(self, model: str, inputs: dict[str, NDArray[Any]], version: int | None = None) -> dict[str, Any]:
        """Sends a request to production, for an earlier version if one is named."""
        file = self.home / "request.npz"
        np.savez(file, **inputs)  # type: ignore[arg-type]
        return self.engine.infer(model, file, version=version).model_dump()


@dataclass(frozen=True, kw_only=True)
class Released:
    """A version that a registration alone made the champion of its model."""

    model: str
    version: int
    report: ReleaseReport


def request(name: str, version: int, spec: str = "") -> Request:
    return Request(model=name, version=version, spec=spec)


def by_hand() -> Trigger:
    return Trigger(kind="manual", requested_at=time.time())


@pytest.fixture(scope="session")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    prepare_environment()
    home = tmp_path_factory.mktemp("stack") / "home"
    # Nothing waits for the next release: that takes cores from other tests, and few releases here follow each other.
    running = stack.up(Settings(home=home, free_ports=True, sweep_s=3600, warm_minutes=0))
    os.environ["MLFLOW_TRACKING_URI"] = running.registry_uri
    import mlflow

    mlflow.set_tracking_uri(running.registry_uri)
    mlflow.set_registry_uri(running.registry_uri)
    try:
        yield Lab(home=home, running=running, registry=Registry(running.registry_uri), mlflow=mlflow)
    finally:
        stack.down(home)


@pytest.fixture(scope="session")
def champion(lab: Lab) -> Released:
    """A classifier in production, released once for all tests that ask it or register worse versions of it."""
    version = lab.log_classifier("champion", spec=JUDGED)
    report = lab.wait("champion", version)
    assert report.exit_code == 0, report.reason
    return Released(model="champion", version=version, report=report)
