import re
from pathlib import Path

import pytest

from shiplift.pipelines.engines import cache_key
from shiplift.pipelines.engines.cache_key import has_key, key
from shiplift.pipelines.graph import Stage
from shiplift.pipelines.release import RELEASE
from shiplift.runtime.records.base import Record
from shiplift.runtime.records.verdict import Verdict
from shiplift.runtime.spec.measurement import SearchSpace, Slo
from shiplift.runtime.spec.model import Quality
from tests.unit.examples import artifact, deployment, exported, site


def one(slo: Slo) -> Verdict:
    return Verdict.of(())


def two(slo: Slo) -> Verdict:
    return Verdict.of(())


def test_a_key_is_a_sha256_in_hex() -> None:
    assert re.fullmatch("[0-9a-f]{64}", key(Stage(one), {"slo": Slo()}))


def test_the_same_call_has_the_same_key() -> None:
    assert key(Stage(one), {"slo": Slo(p99_ms=5)}) == key(Stage(one), {"slo": Slo(p99_ms=5.0)})


def test_another_record_or_another_step_has_another_key() -> None:
    keys_ = {key(Stage(step), {"slo": slo}) for step in (one, two) for slo in (Slo(), Slo(p99_ms=5), Slo(failures=1))}
    assert len(keys_) == 6


def test_where_a_stage_runs_does_not_change_its_key(tmp_path: Path) -> None:
    here, there = site(tmp_path / "a"), site(tmp_path / "b")
    assert key(Stage(one), {"site": here}) == key(Stage(one), {"site": there})
    assert key(Stage(one), {"x": artifact(uri="a")}) == key(Stage(one), {"x": artifact(uri="b")})


def test_the_order_of_arguments_does_not_change_a_key() -> None:
    assert key(Stage(one), {"a": Slo(), "b": Quality()}) == key(Stage(one), {"b": Quality(), "a": Slo()})


@pytest.mark.parametrize(
    "record", [Slo(p99_ms=5), SearchSpace(time_budget_s=20), Quality(min_score=1), deployment(), exported()]
)
def test_a_record_from_the_ledger_gives_the_key_of_the_one_in_memory(record: Record) -> None:
    again = type(record).model_validate_json(record.model_dump_json())
    assert key(Stage(one), {"record": again}) == key(Stage(one), {"record": record})
    assert key(Stage(one), {"records": (again, again)}) == key(Stage(one), {"records": (record, record)})


def test_another_package_makes_other_keys_of_every_stage(monkeypatch: pytest.MonkeyPatch) -> None:
    stages = [stage for stage in RELEASE.flat() if has_key(stage)]
    before = [key(stage, {}) for stage in stages]
    monkeypatch.setattr(cache_key, "package_digest", lambda: "of the next version")
    assert not {*before} & {key(stage, {}) for stage in stages}
    assert len({*before}) == len(stages) == 9
