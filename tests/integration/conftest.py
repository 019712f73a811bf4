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

from shiplift.pipelines.engines.local import stack
from shiplift.pipelines.engines.local.engine import LocalEngine
from shiplift.pipelines.engines.local.releases import Releases
from shiplift.pipelines.settings import Settings
from shiplift.runtime.base.names import release_name
from shiplift.runtime.records.release import Event, ReleaseReport
from shiplift.runtime.records.request import Request, Trigger
from shiplift.runtime.records.site import Site
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
STACKS = 2  # how many workers start a stack and release a champion; the others run what needs none
# The seconds of CPU that the everyday tests of a file took when last measured, if they are many; others count 4.
SECONDS = {
    "test_pipelines_of_models": 45,
    "test_release": 40,
    "test_bad_input": 45,
    "test_switch": 35,
    "test_formats": 30,
    "test_huggingface": 25,
    "test_bundles_in_production": 18,
    "test_backends": 15,
    "test_scoring": 15,
    "test_registry_rest": 14,
    "test_hostile_versions": 13,
    "test_compartments": 12,
    "test_triton": 11,
    "test_python_models": 9,
    "test_slow_connections": 8,
}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Marks these tests, and groups them for `--dist loadgroup`: what shares a fixture is run by one worker.

    Files that need the stack make `STACKS` groups, so that few are started; any other file is a group. Those that need
    a champion are in one group. The longest groups come first, so that no worker is left with one at the end.
    """
    ours = [item for item in items if "tests/integration" in str(item.path)]
    needs: dict[str, set[str]] = {}
    for item in ours:
        fixtures = needs.setdefault(item.path.stem, set())
        if not item.get_closest_marker("slow"):  # these are grouped for the everyday run
            fixtures.update(getattr(item, "fixturenames", ()))
    groups = _groups(needs)
    order = sorted(set(groups.values()), key=lambda name: (not name.startswith("stack"), -SECONDS.get(name, 4), name))
    for item in ours:
        item.add_marker(pytest.mark.integration)
        item.add_marker(pytest.mark.xdist_group(groups[item.path.stem]))
    rank = {item: order.index(groups[item.path.stem]) for item in ours}
    items.sort(key=lambda item: rank.get(item, -1))


def _groups(needs: dict[str, set[str]]) -> dict[str, str]:
    """The group of each file, by the fixtures that its tests need."""
    groups = {}
    stacks = dict.fromkeys((f"stack-{number}" for number in range(STACKS)), 0)
    longest_first = sorted(needs, key=lambda file: (-SECONDS.get(file, 4), file))
    for file in sorted(longest_first, key=lambda file: "champion" not in needs[file]):
        if "lab" in needs[file]:
            groups[file] = min(stacks, key=lambda name: stacks[name]) if "champion" not in needs[file] else "stack-0"
            stacks[groups[file]] += SECONDS.get(file, 4)
        else:
            groups[file] = file
    return groups


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
