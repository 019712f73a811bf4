"""A pipeline's bundle in production, on the real bundled Triton: it moves, fails and goes back as a whole."""

import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from shiplift.runtime.base.errors import GoldenMismatch, ServerFailed
from shiplift.runtime.host.processes import free_port, stop
from shiplift.runtime.records.kinds.package import Package
from shiplift.runtime.records.measurement import Trial, Tuned
from shiplift.runtime.records.site import Machine, Site
from shiplift.runtime.serving.bundles.package import package_bundle
from shiplift.runtime.serving.machine.production import LocalProduction
from shiplift.runtime.serving.machine.recovery import reinstall
from shiplift.runtime.serving.machine.server import Server, private_server, start_production
from shiplift.runtime.serving.machine.staging import LocalStaging
from shiplift.runtime.serving.triton.client import TritonClient
from shiplift.runtime.serving.triton.command_line import Features, Ports
from shiplift.runtime.serving.triton.repository import golden_arrays
from shiplift.runtime.spec.pipeline import parse
from shiplift.runtime.spec.serving_settings import Rollout, Serving
from tests.integration.backends import ENVIRONMENT
from tests.integration.conftest import until
from tests.integration.test_pipelines_of_models import CHAIN, ROWS, Shelf, largest, request, sound, times

pytestmark = pytest.mark.integration
MOVES = {"ensemble": 300, "bls": 100}  # an ensemble moves in a tenth of the time
EVERYDAY = ["bls", pytest.param("ensemble", marks=pytest.mark.slow)]
WAYS = {"ensemble": CHAIN, "bls": CHAIN.replace("name: chain", "name: chain\ntimeout_s: 20")}


@dataclass
class Place:
    """A production server, and the bundles of one pipeline that are made for it."""

    shelf: Shelf
    server: Server
    text: str

    @property
    def site(self) -> Site:
        home = self.shelf.folder / "home"
        machine = Machine(http=self.server.http, grpc=self.server.grpc, metrics=self.server.metrics)
        return Site(
            home=str(home),
            registry_uri="",
            artifacts_uri=(self.shelf.folder / "artifacts").as_uri(),
            server_environment=str(ENVIRONMENT.root),
            place=machine,
        )

    @property
    def production(self) -> LocalProduction:
        assert isinstance(self.site.place, Machine)
        return LocalProduction(self.site, self.site.place)

    def bundle(self, version: int, factor: int, *, wrong: str = "") -> Package:
        """A version whose `six` is 3 x `factor` times its input.

        The golden requests of the `wrong` one, the whole or a member, expect something else.
        """
        own = golden_arrays({"x": ROWS}, {"y": (factor + (wrong == "member")) * ROWS})
        packages = {
            "two": self.shelf.put("two", times(factor), version=version, golden=own),
            "three": self.shelf.put("three", times(3), version=version),
            "top": self.shelf.put("top", largest(), version=version),
        }
        answers = {"six": (3 * factor + (wrong == "whole")) * ROWS, "top": 3 * factor * ROWS.max(axis=1, keepdims=True)}
        return package_bundle(
            self.shelf.folder / f"bundle-{version}",
            parse(self.text).spec,
            sound(self.text, packages, {}),
            {},
            self.shelf.store,
            version=version,
            ask=lambda *_: golden_arrays({"x": ROWS}, answers),
        )

    def move(self, package: Package) -> None:
        """What a promotion and a rollback do."""
        self.production.move(package, Rollout())
        self.production.retire(package.model)

    def loaded(self) -> set[str]:
        with TritonClient(self.server.grpc, repository_key=self.server.key) as client:
            return set(client.loaded())


@contextmanager
def placed(shelf: Shelf, text: str) -> Iterator[Place]:
    repository = shelf.folder / "home" / "production" / "models"
    with private_server(ENVIRONMENT, repository, Features(cache_mb=0), log=shelf.folder / "log") as server:
        yield Place(shelf, server, text)


@pytest.mark.parametrize("way", EVERYDAY)
def test_bundles_are_promoted_and_rolled_back_under_traffic(tmp_path: Path, way: str) -> None:
    """No request fails, and each answer is as a whole that of the bundle that it names."""
    stopped = threading.Event()
    with placed(Shelf(tmp_path), WAYS[way]) as place:
        first, second = place.bundle(1, 2), place.bundle(2, 20)
        factors = {digest_of(first): 2, digest_of(second): 20}
        place.move(first)

        def ask(_: int) -> Counter[str]:
            seen: Counter[str] = Counter()
            while not stopped.is_set():
                answer = request(place.server, "chain", {"x": ROWS})
                digest = answer["bundle"][0].decode()
                np.testing.assert_array_equal(answer["six"], 3 * factors[digest] * ROWS)
                np.testing.assert_array_equal(answer["top"][:, 0], 3 * factors[digest] * ROWS.max(axis=1))
                seen[digest] += 1
            return seen

        with ThreadPoolExecutor(4) as pool:
            asking = [pool.submit(ask, number) for number in range(4)]
            try:
                for package in (second, first):
                    place.move(package)
                    assert place.production.serves(package)
                    assert request(place.server, "chain", {"x": ROWS})["bundle"][0].decode() == digest_of(package)
            finally:
                stopped.set()
            seen = sum((each.result() for each in asking), Counter())
        assert set(seen) == set(factors)
        assert place.loaded() == {"chain", *first.member_models, *second.member_models}


@pytest.mark.slow
def test_only_the_bundles_that_serve_and_served_last_stay_loaded(tmp_path: Path) -> None:
    with placed(Shelf(tmp_path), CHAIN) as place:
        first, second, third = (place.bundle(version, version) for version in (1, 2, 3))
        for package in (first, second, third):
            place.move(package)
        assert place.loaded() == {"chain", *second.member_models, *third.member_models}
        assert {folder.name for folder in place.production.repository.iterdir()} == place.loaded()
        place.move(second)
        np.testing.assert_array_equal(request(place.server, "chain", {"x": ROWS})["six"], 6 * ROWS)
        assert place.loaded() == {"chain", *second.member_models, *third.member_models}


@pytest.mark.parametrize(
    ("fault", "error", "message"),
    [
        ("whole", GoldenMismatch, "chain"),
        ("member", GoldenMismatch, "two-2--.* answers a golden request wrongly: 'y'"),
        ("file", ServerFailed, "load failed for model .top-2--"),
    ],
)
def test_a_bundle_that_does_not_work_leaves_nothing_behind(
    tmp_path: Path, fault: str, error: type[Exception], message: str
) -> None:
    with placed(Shelf(tmp_path), CHAIN) as place:
        good, bad = place.bundle(1, 2), place.bundle(2, 20, wrong=fault)
        place.move(good)
        before = place.loaded()
        if fault == "file":
            tree = place.shelf.store.fetch(bad.repository, tmp_path / "broken")
            (tree / bad.member_models[-2] / "2" / "model.onnx").write_bytes(b"no model")
            bad = bad.model_copy(update={"repository": place.shelf.store.put_tree(tree)})
        with pytest.raises(error, match=message):
            place.production.move(bad, Rollout())
        assert place.loaded() == before == {folder.name for folder in place.production.repository.iterdir()}
        np.testing.assert_array_equal(request(place.server, "chain", {"x": ROWS})["six"], 6 * ROWS)
        assert place.production.serves(good)


@pytest.mark.slow
def test_a_member_that_is_gone_is_loaded_again_from_the_store(tmp_path: Path) -> None:
    with placed(Shelf(tmp_path), WAYS["bls"]) as place:
        package = place.bundle(1, 2)
        place.move(package)
        with TritonClient(place.server.grpc, repository_key=place.server.key) as client:
            client.unload(package.member_models[0])
        assert isinstance(place.site.place, Machine)
        reinstall(place.site, place.site.place, package, timeout_s=60)
        np.testing.assert_array_equal(request(place.server, "chain", {"x": ROWS})["six"], 6 * ROWS)


@pytest.mark.slow
@pytest.mark.parametrize("way", EVERYDAY)
def test_a_server_that_starts_again_serves_the_bundle(tmp_path: Path, way: str) -> None:
    """All models of production's repository are loaded at once, in an order of Triton's own."""
    with placed(Shelf(tmp_path), WAYS[way]) as place:
        first, second = place.bundle(1, 2), place.bundle(2, 20)
        place.move(first)
        place.move(second)
    ports = Ports(http=free_port(), grpc=free_port(), metrics=free_port())
    features = Features(cache_mb=0)
    server = start_production(ENVIRONMENT, place.production.repository, ports, features, log=tmp_path / "again")
    try:
        with TritonClient(server.grpc, repository_key=server.key) as client:
            assert until(lambda: client.ready("chain"))
        answer = request(server, "chain", {"x": ROWS})
        np.testing.assert_array_equal(answer["six"], 60 * ROWS)
        assert answer["bundle"][0].decode() == digest_of(second)
    finally:
        stop(server.process)


def test_a_bundle_is_staged_beside_its_champion(tmp_path: Path) -> None:
    with placed(Shelf(tmp_path), CHAIN) as place:
        first, second = place.bundle(1, 2), place.bundle(2, 20)
    staging = LocalStaging(place.site, "chain", 2)
    best = Trial(
        precision="fp32",
        config=second.config,
        concurrency=1,
        throughput_per_s=1,
        p50_ms=1,
        p99_ms=1,
        memory_mb=1,
        within_slo=True,
    )
    try:
        deployment = staging.start((Tuned(target="local-cpu", package=second, best=best),), Serving(), Rollout())
        with staging.beside(deployment, first) as champion, TritonClient(deployment.endpoint.grpc) as client:
            inputs = {"x": ROWS}
            np.testing.assert_array_equal(client.infer("chain", second.signature, inputs)["six"], 60 * ROWS)
            np.testing.assert_array_equal(client.infer(champion.model, first.signature, inputs)["six"], 6 * ROWS)
    finally:
        staging.end()


def digest_of(package: Package) -> str:
    """The digest of a bundle, as in the names of its members."""
    (digest,) = {name.rpartition("--")[2] for name in package.member_models}
    return digest


@pytest.mark.slow
@pytest.mark.alone
@pytest.mark.parametrize("way", WAYS)
def test_a_hundred_moves_under_load_fail_nothing_and_mix_nothing(tmp_path: Path, way: str) -> None:
    """Some 10^5 answers; each is as a whole that of the bundle that it names, and none is missing."""
    stopped = threading.Event()
    with placed(Shelf(tmp_path), WAYS[way]) as place:
        first, second = place.bundle(1, 2), place.bundle(2, 20)
        factors = {digest_of(first): 2, digest_of(second): 20}
        place.move(first)

        def ask(_: int) -> Counter[str]:
            seen: Counter[str] = Counter()
            signature, top = first.signature, ROWS.max(axis=1)
            with TritonClient(place.server.grpc, repository_key=place.server.key) as client:
                while not stopped.is_set():
                    answer = client.infer("chain", signature, {"x": ROWS})
                    digest = answer["bundle"][0].decode()
                    assert np.array_equal(answer["six"], 3 * factors[digest] * ROWS), digest
                    assert np.array_equal(answer["top"][:, 0], 3 * factors[digest] * top), digest
                    seen[digest] += 1
            return seen

        seconds: list[float] = []
        with ThreadPoolExecutor(6) as pool:
            asking = [pool.submit(ask, number) for number in range(6)]
            try:
                for package in [second, first] * (MOVES[way] // 2):
                    began = time.monotonic()
                    place.move(package)
                    seconds.append(time.monotonic() - began)
                    assert not any(each.done() for each in asking)
            finally:
                stopped.set()
            seen = sum((each.result() for each in asking), Counter())
    print(
        f"{way}: {sum(seen.values())} answers {dict(seen)}, moves of {np.median(seconds):.2f} to {max(seconds):.2f} s"
    )
    assert set(seen) == set(factors)
    assert max(seconds) < 5
