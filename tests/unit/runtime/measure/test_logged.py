"""Logged requests are the author's file, so a sandbox reads it."""

import json
from pathlib import Path

import numpy as np
import pytest

from shiplift.runtime.base.errors import DataInvalid
from shiplift.runtime.measure.logged import write_recorded
from shiplift.runtime.model.tensors import dump_npz
from shiplift.runtime.records.kinds.package import Package
from shiplift.runtime.records.model import RecordedRequests
from shiplift.runtime.records.serving import Padding
from shiplift.runtime.records.site import SitePolicy
from shiplift.runtime.spec.measurement import Load
from shiplift.runtime.store.artifacts import ArtifactStore
from tests.unit.examples import package, signature, site, tensor

POLICY = SitePolicy()


def written(
    home: Path, body: bytes, name: str, *, policy: SitePolicy = POLICY, served: Package | None = None
) -> tuple[Path, tuple[int, ...]]:
    here = site(home).model_copy(update={"policy": policy})
    store = ArtifactStore(here.artifacts_uri)
    path = home / "load" / "challenger.json"
    path.parent.mkdir()
    recorded = RecordedRequests(file=store.put_bytes(body), name=name)
    return path, write_recorded(here, store, served or package(), recorded, Load(), path)


def test_logged_requests_become_the_load_generator_s(tmp_path: Path) -> None:
    rows = np.arange(12, dtype=np.float32).reshape(3, 4)
    path, lengths = written(tmp_path, dump_npz({"input": rows}), "requests.npz")
    assert lengths == ()
    assert [request["input"]["shape"] for request in json.loads(path.read_text())["data"]] == [[4]] * 3
    assert [entry.name for entry in path.parent.iterdir()] == ["challenger.json"]


def test_the_lengths_of_requests_are_learnt_for_a_package_that_pads_them(tmp_path: Path) -> None:
    ragged = signature().model_copy(update={"inputs": (tensor("input", -1, -1),)})
    served = package().model_copy(update={"signature": ragged, "padding": Padding(pad={"input": 0}, buckets=(8,))})
    bodies = [
        {"inputs": [{"name": "input", "shape": [1, size], "datatype": "FP32", "data": [0.5] * size}]}
        for size in (3, 8, 1)
    ]
    path, lengths = written(tmp_path, json.dumps(bodies).encode(), "requests.json", served=served)
    assert lengths == (3, 8, 1)
    assert [request["input"]["shape"] for request in json.loads(path.read_text())["data"]] == [[3], [8], [1]]


def test_requests_that_can_t_be_read_say_so(tmp_path: Path) -> None:
    with pytest.raises(DataInvalid, match=r"the requests in requests\.json can't be read"):
        written(tmp_path, b"{", "requests.json")


@pytest.mark.parametrize(
    ("policy", "message"),
    [
        (SitePolicy(unpacked_mb=1), r"requests\.npz unpacks to \d+ bytes, the limit is 1048576"),
        (SitePolicy(samples=10), r"requests\.npz has 100000 samples, the limit is 10"),
    ],
)
def test_the_site_limits_what_logged_requests_may_unpack_to(tmp_path: Path, policy: SitePolicy, message: str) -> None:
    body = dump_npz({"input": np.zeros((100_000, 4), np.float32)})
    with pytest.raises(DataInvalid, match=message):
        written(tmp_path, body, "requests.npz", policy=policy)
