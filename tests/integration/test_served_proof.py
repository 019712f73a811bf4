"""The proof through the real packaged server: a right package is asked all, one that mixes rows is found."""

import itertools
import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Event

import numpy as np
import pytest

from shiplift.pipelines.daemons.prober import beat_of
from shiplift.runtime.model.tensors import dump_npz, first_requests, load_npz
from shiplift.runtime.proof.answers import Answers
from shiplift.runtime.proof.file import in_file
from shiplift.runtime.records.artifact import Artifact
from shiplift.runtime.records.measurement import Differing
from shiplift.runtime.records.proof import ServedProof
from shiplift.runtime.records.serving import ServingConfig
from shiplift.runtime.records.site import Site
from shiplift.runtime.search.private_server import private_bench
from shiplift.runtime.search.served_proof import served_proof
from shiplift.runtime.search.space import Point
from shiplift.runtime.serving.triton.client import TritonClient
from shiplift.runtime.serving.triton.repository import GOLDEN
from shiplift.runtime.spec.serving_settings import Serving
from shiplift.runtime.store.artifacts import ArtifactStore
from tests.integration.test_benches import site
from tests.packages import multiplying

__all__ = ["site"]
pytestmark = pytest.mark.integration
CONFIG = ServingConfig(max_batch=8, queue_delay_us=500, instances=1, threads=1)
ROWS = np.random.default_rng(0).normal(size=(300, 4)).astype(np.float32)


def questions(store: ArtifactStore, factor: float) -> Artifact:
    """Rows, and what a model that multiplies by `factor` answers."""
    answers = Answers.of({"output": np.float32(factor) * ROWS})
    return store.put_bytes(dump_npz(in_file({"0": {"input": ROWS}}, {"0": answers}, {"0": ("validation",) * 300})))


def test_a_package_is_asked_by_many_clients_and_one_that_mixes_their_rows_is_found(site: Site, tmp_path: Path) -> None:
    store = ArtifactStore(site.artifacts_uri)
    asked = questions(store, 2)
    right = multiplying(store, tmp_path / "made", "right", factor=2, questions=asked)
    other = multiplying(store, tmp_path / "made", "other", factor=3, questions=asked)
    mixing = multiplying(store, tmp_path / "made", "mixing", factor=2, mixing=True, questions=asked)
    for package, config, setting in (
        (right, CONFIG, ""),
        (other, CONFIG, "alone"),
        (mixing, CONFIG, "in batches"),
        (mixing, CONFIG.model_copy(update={"max_batch": 1}), ""),
    ):
        work = tmp_path / f"{package.model}-{config.max_batch}"
        work.mkdir()
        with private_bench(site, (package,), Serving(), work) as bench:
            proof = served_proof(bench, package, config, store)
        if not setting:
            assert isinstance(proof, ServedProof)
            assert proof.settings[-1].name == "to 16 clients at once"
            assert sum(each.rows for each in proof.settings) >= 300
            continue
        assert isinstance(proof, Differing)
        assert (proof.found.setting, proof.found.origin) == (setting, "validation")
        (tensor,) = json.loads(proof.request)["inputs"]
        assert tensor["data"] == ROWS[proof.found.row].tolist()
        asked_alone = setting == "alone"
        assert proof.repeat.startswith(
            f"shiplift ask {package.model}/1 --form onnxruntime-fp32 --row {proof.found.row}"
        )
        assert (proof.repeat.count("--row") == 1) is asked_alone


def test_answers_that_vary_with_their_neighbours_restart_nothing_unless_a_proof_says_that_they_do_not(
    site: Site,
    tmp_path: Path,
) -> None:
    store = ArtifactStore(site.artifacts_uri)
    mixing = multiplying(store, tmp_path / "made", "mixing", factor=2, mixing=True)
    proof = ServedProof(asked=(), settings=(), clients=16)
    golden = first_requests(load_npz(store.read_from_tree(mixing.repository, GOLDEN)), 1)
    (tmp_path / "bench").mkdir()
    with private_bench(site, (mixing,), Serving(), tmp_path / "bench") as bench, ThreadPoolExecutor(16) as pool:
        bench.serve(Point(mixing, CONFIG))
        address, ended = bench.address("grpc"), Event()

        def ask(first: int) -> None:
            with TritonClient(address) as client:
                for row in itertools.cycle(range(first, len(ROWS))):
                    if ended.is_set():
                        return
                    client.infer("mixing", mixing.signature, {"input": ROWS[row : row + 1]})

        clients = [pool.submit(ask, first) for first in range(15)]
        try:
            beats = [beat_of(address, mixing, golden) for _ in range(10)]
            proved = [beat_of(address, mixing.model_copy(update={"proof": proof}), golden) for _ in range(10)]
        finally:
            ended.set()
    assert all(client.exception() is None for client in clients)
    assert any(beat.varies for beat in beats)
    assert not any(beat.bad for beat in beats)
    assert any(beat.bad for beat in proved)
