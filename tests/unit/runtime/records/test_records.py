import json
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from shiplift.runtime.base.errors import (
    Aborted,
    AwaitingApproval,
    Cancelled,
    Inconclusive,
    Refused,
    Rejected,
    ShipliftError,
    every_error,
)
from shiplift.runtime.records.artifact import Artifact
from shiplift.runtime.records.base import Record, Sections, identity, volatile
from shiplift.runtime.records.deployment import ServerPods
from shiplift.runtime.records.failure import Failure
from shiplift.runtime.records.measurement import LoadReport
from shiplift.runtime.records.model import ModelVersion
from shiplift.runtime.records.promotion import Beside
from shiplift.runtime.records.request import Trigger
from shiplift.runtime.records.site import Cluster, Machine, Site
from shiplift.runtime.records.verdict import Check, Outcome, Packages, Verdict, objection
from shiplift.runtime.spec.document import ReleaseSpec
from shiplift.runtime.spec.measurement import Regression, SearchSpace, Slo
from shiplift.runtime.spec.model import Quality
from tests.unit.examples import (
    artifact,
    check,
    deployment,
    exported,
    load_report,
    package,
    point,
    release_report,
    site,
)

CLUSTER = Cluster(namespace="shiplift", serving_namespace="models", server_image="example.org/server:1")

OF_PEOPLE = {Aborted: "aborted", AwaitingApproval: "waiting", Cancelled: "cancelled", Rejected: "rejected"}


class Leaf(Record):
    size: float = 1
    where: str = volatile("")


class Tree(Sections):
    leaf: Leaf
    slo: Slo = Slo()
    name: str = ""


def test_a_record_cannot_be_changed() -> None:
    with pytest.raises(ValidationError):
        setattr(artifact(), "size_bytes", 5)  # noqa: B010 - a plain assignment is a type error already


def test_a_record_refuses_a_field_it_does_not_know() -> None:
    with pytest.raises(ValidationError, match="colour"):
        Leaf(colour="red")  # type: ignore[call-arg]


@pytest.mark.parametrize("digest", ["", "0" * 63, "0" * 65, "G" * 64, "../" + "0" * 61])
def test_an_artifact_is_named_by_a_sha256_and_nothing_else(digest: str) -> None:
    with pytest.raises(ValidationError):
        Artifact(sha256=digest, size_bytes=0)


@pytest.mark.parametrize(("kind", "name"), [(LoadReport, "load_report"), (ModelVersion, "model_version"), (Slo, "slo")])
def test_a_record_has_one_name_as_a_parameter(kind: type[Record], name: str) -> None:
    assert kind.parameter() == name


class Grown(Tree):
    @property
    def grouped(self) -> Leaf:
        """A group of its fields."""
        return Leaf(where=self.name)

    @property
    def height(self) -> int:
        return 1


def test_sections_list_their_records_and_leave_out_other_fields() -> None:
    assert Tree.parts() == {"leaf": Leaf, "slo": Slo}


def test_a_group_of_fields_is_a_section_too() -> None:
    assert Grown.parts() == {"leaf": Leaf, "slo": Slo, "grouped": Leaf}
    assert "grouped" not in Grown(leaf=Leaf()).model_dump()


def test_where_something_lies_does_not_change_its_identity() -> None:
    assert identity(artifact(uri="file:///a")) == identity(artifact(uri="s3://b"))
    assert identity(Tree(leaf=Leaf(where="here"))) == identity(Tree(leaf=Leaf(where="there")))
    assert identity(deployment()) == identity(deployment().model_copy(update={"load_seconds": 9.0}))


def test_what_something_is_changes_its_identity() -> None:
    assert identity(artifact("1")) != identity(artifact("2"))
    assert identity(Tree(leaf=Leaf(size=1))) != identity(Tree(leaf=Leaf(size=2)))


def test_of_a_site_only_its_policy_counts_and_of_a_trigger_nothing(tmp_path: Any) -> None:
    assert identity(Trigger(kind="webhook", delivery="x")) == {}
    assert identity(site(tmp_path)) == identity(site(tmp_path / "b", place=CLUSTER))
    assert list(identity(site(tmp_path))) == ["policy"]


def test_what_runs_a_deployment_never_changes_its_identity() -> None:
    pods = deployment().model_copy(update={"workload": ServerPods(name="digits-2", tuned_memory_mb=100)})
    assert identity(pods) == identity(deployment())


@pytest.mark.parametrize("place", [Machine(http="a:1", grpc="a:2", metrics="http://a:3"), CLUSTER])
def test_a_site_read_back_is_the_same_kind_of_place(tmp_path: Any, place: Machine | Cluster) -> None:
    where = site(tmp_path, place=place)
    assert Site.model_validate_json(where.model_dump_json()) == where


def test_a_place_has_the_fields_of_its_kind_and_no_others(tmp_path: Any) -> None:
    fields = site(tmp_path).model_dump()
    for place in ({"kind": "moon"}, {"kind": "machine", "namespace": "x"}, {**fields["place"], "kind": "cluster"}):
        with pytest.raises(ValidationError, match="place"):
            Site(**fields | {"place": place})


@pytest.mark.parametrize(
    "record",
    [
        *(section for name in ReleaseSpec.model_fields if isinstance(section := getattr(ReleaseSpec(), name), Record)),
        ReleaseSpec(),
        Slo(p99_ms=5, throughput_per_s=100),
        SearchSpace(time_budget_s=20),
        Quality(min_score=1),
        Regression(p99_percent=50),
        package(),
        package(score=None, metric=None),
        deployment(),
        exported(),
        load_report(point(p99_ms=5)),
        check(measured=math.inf),
        check(measured=math.nan, limit=-math.inf),
        Packages(target="t", packages=(package(),), checks=(check(Outcome.FAIL),)),
    ],
    ids=lambda record: type(record).__name__,
)
def test_a_record_read_back_from_json_has_the_same_identity(record: Record) -> None:
    again = type(record).model_validate_json(record.model_dump_json())
    assert json.dumps(identity(again)) == json.dumps(identity(record))
    assert again.model_dump_json() == record.model_dump_json()


_numbers = st.none() | st.integers(1, 10**6) | st.floats(min_value=1e-9, max_value=1e9)


@given(p99=_numbers, throughput=_numbers, failures=st.integers(0, 100), memory=_numbers)
def test_numbers_given_as_int_or_float_have_one_identity(p99: Any, throughput: Any, failures: int, memory: Any) -> None:
    slo = Slo(p99_ms=p99, throughput_per_s=throughput, failures=failures, memory_mb=memory)
    assert identity(Slo.model_validate_json(slo.model_dump_json())) == identity(slo)


@given(measured=st.none() | st.floats(), limit=st.none() | st.floats(), reason=st.text(max_size=20))
def test_any_number_survives_json(measured: float | None, limit: float | None, reason: str) -> None:
    record = check(measured=measured, limit=limit, reason=reason)
    again = Check.model_validate_json(record.model_dump_json())
    assert json.dumps(identity(again)) == json.dumps(identity(record))


_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3).map(tuple) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
)


@given(_values)
def test_an_identity_is_plain_json_and_its_own_identity(value: Any) -> None:
    once = identity(value)
    assert identity(once) == once


@pytest.mark.parametrize(
    ("outcomes", "worst"),
    [
        ((), Outcome.PASS),
        ((Outcome.PASS, Outcome.PASS), Outcome.PASS),
        ((Outcome.PASS, Outcome.INCONCLUSIVE), Outcome.INCONCLUSIVE),
        ((Outcome.INCONCLUSIVE, Outcome.FAIL), Outcome.FAIL),
        ((Outcome.FAIL, Outcome.PASS), Outcome.FAIL),
    ],
)
def test_the_worst_check_decides_a_verdict(outcomes: tuple[Outcome, ...], worst: Outcome) -> None:
    assert Verdict.of(tuple(check(outcome) for outcome in outcomes)).outcome is worst


def test_a_verdict_gives_its_reasons_and_leaves_out_what_passed() -> None:
    verdict = Verdict.of((check(), check(Outcome.FAIL, "memory", "too much"), check(Outcome.INCONCLUSIVE, "f1", "few")))
    assert verdict.reasons == ("memory: too much", "f1: few")


def test_what_to_do_is_said_once_with_the_version_and_not_for_warnings_or_what_was_promoted() -> None:
    do = "Ask `shiplift report MODEL/VERSION --compare MODEL/CHAMPION`, `shiplift status MODEL`."
    checks = (
        check(),
        check(Outcome.FAIL, "p99", do=do),
        check(Outcome.INCONCLUSIVE, "rate", do=do),
        check(Outcome.FAIL, "memory", do="Shrink it."),
        check(Outcome.FAIL, "targets", do="Never mind.", severity="warn"),
    )
    refused = release_report(model="two words", checks=checks, alias="", verdict=Outcome.FAIL)
    assert refused.what_to_do == (
        "p99, rate: Ask `shiplift report 'two words/3' --compare 'two words/CHAMPION'`, `shiplift status 'two words'`.",
        "memory: Shrink it.",
    )
    assert release_report(checks=checks).what_to_do == ()


def test_only_a_pass_is_let_through_before_traffic_moves() -> None:
    Verdict.of((check(),)).require_pass()
    with pytest.raises(Refused, match="p99: slow"):
        Verdict.of((check(Outcome.FAIL, reason="slow"),)).require_pass()
    with pytest.raises(Inconclusive, match="p99: unstable"):
        Verdict.of((check(Outcome.INCONCLUSIVE, reason="unstable"),)).require_pass()


def test_a_record_objects_only_where_its_checks_do_not_pass() -> None:
    assert objection(artifact()) is None
    assert Verdict.of((check(),)).objection() is None
    assert Packages(target="t", packages=(package(),), checks=(check(),)).objection() is None
    for worse in (Outcome.FAIL, Outcome.INCONCLUSIVE):
        verdict = Verdict.of((check(worse),))
        assert objection(verdict) == verdict
        assert Packages(target="t", packages=(), checks=(check(worse),)).objection() == verdict


@pytest.mark.parametrize("kind", list(every_error()))
def test_an_error_comes_back_from_its_record(kind: type[ShipliftError]) -> None:
    error = kind("it broke.", do="Fix it.")
    failure = Failure.of(error)
    again = failure.error()
    assert (type(again), again.what, again.do) == (kind, error.what, error.do)
    assert (failure.message, failure.about_model) == (str(error), kind.about_model)
    assert failure.outcome == OF_PEOPLE.get(kind, "failed")


def test_a_bug_is_recorded_by_its_type_and_message_in_one_line_of_bounded_length() -> None:
    failure = Failure.of(KeyError("a"))
    assert (failure.kind, failure.exit_code) == ("KeyError", ShipliftError.exit_code)
    assert failure.what == "a bug in Shiplift: KeyError: 'a'"
    assert not failure.about_model
    assert "\n" not in Failure.of(ValueError("two\nlines")).what
    assert len(Failure.of(ValueError("x" * 10**6)).what) == 1000


@pytest.mark.parametrize(
    ("outcome", "code", "stage_outcome"),
    [
        (Outcome.PASS, 0, "ok"),
        (Outcome.FAIL, Refused.exit_code, "refused"),
        (Outcome.INCONCLUSIVE, Inconclusive.exit_code, "inconclusive"),
    ],
)
def test_an_outcome_has_an_exit_code_and_a_stage_outcome(outcome: Outcome, code: int, stage_outcome: str) -> None:
    assert (outcome.exit_code, outcome.stage_outcome) == (code, stage_outcome)


def test_the_member_models_of_a_package_keep_their_name_in_what_is_stored() -> None:
    bundle = package(companions=("part--5f0c",))
    stored = Beside(package=bundle).model_dump(mode="json")
    assert stored["package"]["companions"] == ["part--5f0c"]
    assert Beside.model_validate(stored).package == bundle
