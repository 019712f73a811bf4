"""Logged requests are the author's file: a sandbox reads it."""

import csv
import io
import json
from pathlib import Path

import numpy as np
import pytest

from shiplift.runtime.base.errors import DataInvalid
from shiplift.runtime.measure.generator import load_generator
from shiplift.runtime.model.tensors import dump_npz
from shiplift.runtime.records.site import SitePolicy
from shiplift.runtime.spec.measurement import Load
from shiplift.runtime.store.artifacts import ArtifactStore
from shiplift.steps.load_test import _LoadTest, _table, _write_recorded
from tests.unit.examples import package, site

POLICY = SitePolicy()


def written(home: Path, body: bytes, name: str, *, policy: SitePolicy = POLICY) -> Path:
    here = site(home).model_copy(update={"policy": policy})
    store, load = ArtifactStore(here.artifacts_uri), Load()
    work = home / "load"
    work.mkdir()
    test = _LoadTest(site=here, generator=load_generator(here, load.protocol), load=load, work=work)
    return _write_recorded(test, store, package(), store.put_bytes(body), name, work / "challenger.json")


def test_logged_requests_become_the_load_generator_s(tmp_path: Path) -> None:
    rows = np.arange(12, dtype=np.float32).reshape(3, 4)
    path = written(tmp_path, dump_npz({"input": rows}), "requests.npz")
    assert [request["input"]["shape"] for request in json.loads(path.read_text())["data"]] == [[4]] * 3
    assert [entry.name for entry in path.parent.iterdir()] == ["challenger.json"]


def test_every_run_is_a_row_with_the_load_generator_s_own_columns() -> None:
    run = {"side": "challenger", "windows": (), "row": {"Concurrency": "4", "p50 latency": "700"}}
    closed = {"phase": "sweep", "demand": {"concurrency": 4, "rate_per_s": 0.0}, **run}
    paced = {
        "phase": "open loop",
        "demand": {"concurrency": 0, "rate_per_s": 9.5},
        **run,
        "row": {"Request Rate": "9.5"},
    }
    rows = list(csv.DictReader(io.StringIO(_table([closed, paced]).decode())))
    assert [(row["phase"], row["side"], row["concurrency"], row["rate_per_s"]) for row in rows] == [
        ("sweep", "challenger", "4", "0.0"), ("open loop", "challenger", "0", "9.5"),
    ]  # fmt: skip
    assert [(row["Concurrency"], row["p50 latency"], row["Request Rate"]) for row in rows] == [
        ("4", "700", ""), ("", "", "9.5"),
    ]  # fmt: skip


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
