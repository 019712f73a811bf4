import json
import re
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shiplift.pipelines.engines.answers import Accepted
from shiplift.pipelines.engines.argo.releases import MAX_REQUEST_BYTES, ArgoReleases, concluding
from shiplift.pipelines.engines.argo.workflows import Push
from shiplift.runtime.base.errors import (
    AlreadyDecided,
    AwaitingApproval,
    ClusterRefused,
    NotFound,
    NothingToDecide,
    SpecInvalid,
    Temporary,
)
from shiplift.runtime.base.names import dns_name, push_name, workflow_name
from shiplift.runtime.records.decision import Decision
from shiplift.runtime.records.request import Request, Trigger
from shiplift.runtime.store.registry.terms import TAG
from tests.unit.api_server import ApiServer, running
from tests.unit.pipelines.engines.local.test_releases import report

WEBHOOK, SWEEP, MANUAL = Trigger(kind="webhook", delivery="d-1"), Trigger(kind="sweep"), Trigger(kind="manual")
DIGITS = Request(model="digits", version=3)
NAME = workflow_name("digits", 3, "")
A, B = "a" * 40, "b" * 40
PUSH = Push(repository="acme/models", before=A, after=B)
COMMITS = st.text(alphabet="0123456789abcdef", min_size=40, max_size=40)


@pytest.fixture
def server() -> Iterator[ApiServer]:
    with running() as server:
        yield server


class Tags(dict[tuple[str, int], dict[str, str]]):
    """The registry's tags, and who asked for them."""

    asked = 0

    def __call__(self, model: str, version: int) -> dict[str, str]:
        self.asked += 1
        return self.get((model, version), {})


@pytest.fixture
def tags() -> Tags:
    return Tags()


@pytest.fixture
def releases(server: ApiServer, tags: Tags) -> ArgoReleases:
    return ArgoReleases(server.api(), tags)


def concluded(exit_code: int) -> dict[str, Any]:
    value = report(NAME, exit_code, version=3).model_dump_json()
    parameters = [{"name": "other"}, {"name": "release_report", "value": value}]
    return {"x": {"type": "Pod", "templateName": "conclude", "outputs": {"parameters": parameters}}}


# --- names ---


@given(st.text(min_size=1, max_size=256), st.integers(1, 2**31), st.text(max_size=50))
def test_a_name_fits_a_label_with_what_is_appended_to_it(model: str, version: int, spec: str) -> None:
    name = workflow_name(model, version, spec)
    assert re.fullmatch(r"release-[a-z]([a-z0-9-]*[a-z0-9])?", name)
    assert len(concluding(f"{name}-999")) <= 63


@given(st.text(min_size=1, max_size=300), COMMITS, COMMITS)
def test_a_push_s_name_fits_too(repository: str, before: str, after: str) -> None:
    assert len(f"{push_name(repository, before, after)}-999") <= 63
    assert re.fullmatch(r"git-[a-z0-9-]*[a-z0-9]", push_name(repository, before, after))


def test_the_name_says_model_version_and_digest() -> None:
    assert re.fullmatch(r"release-digits-3-[0-9a-f]{10}", NAME)
    others = [workflow_name("digits", 3, "slo: {}"), workflow_name("digits", 4, ""), workflow_name("Digits", 3, "")]
    assert len({NAME, *others}) == 4
    assert push_name("acme/Models", B, A) == f"git-acme-models-{'a' * 12}-{'b' * 8}"
    assert push_name("acme/models", A, B) != push_name("acme/models", "c" * 40, B)


# --- accepting ---


def test_a_request_becomes_one_workflow_that_says_what_it_is(releases: ArgoReleases, server: ApiServer) -> None:
    assert releases.accept(DIGITS, WEBHOOK) == Accepted(name=NAME, created=True, queued=True)
    body = server.workflows[NAME]
    assert body["spec"]["workflowTemplateRef"] == {"name": "release"}
    parameters = {item["name"]: item["value"] for item in body["spec"]["arguments"]["parameters"]}
    assert Request.model_validate_json(parameters["request"]) == DIGITS
    assert Trigger.model_validate_json(parameters["trigger"]) == WEBHOOK
    assert parameters["model"] == dns_name("digits") == "digits"
    assert body["metadata"]["labels"] == {
        "app.kubernetes.io/managed-by": "shiplift",
        "shiplift.dev/model": "digits",
        "shiplift.dev/version": "3",
        "shiplift.dev/release": NAME,
    }
    assert body["metadata"]["annotations"] == {
        "shiplift.dev/model-name": "digits",
        "shiplift.dev/trigger": "webhook",
        "shiplift.dev/delivery": "d-1",
    }


def test_a_version_with_the_number_of_a_deleted_one_is_another_release(
    releases: ArgoReleases, server: ApiServer, tags: Tags
) -> None:
    first, second, third = (DIGITS.model_copy(update={"registered_at": float(at)}) for at in (1, 2, 3))
    assert releases.accept(first, WEBHOOK).name == NAME
    server.end(NAME, nodes=concluded(0))
    new = releases.accept(second, WEBHOOK)
    assert (new.created, new.name) == (True, workflow_name("digits", 3, "", 2.0))
    assert releases.accept(second, WEBHOOK) == Accepted(name=new.name, created=False, queued=False)
    assert releases.accept(first, WEBHOOK) == Accepted(name=NAME, created=False, queued=False)
    assert releases.accept(third, WEBHOOK).created
    server.end(new.name, nodes=concluded(0))
    del server.workflows[NAME]  # Argo has removed it
    assert releases.accept(second, WEBHOOK) == Accepted(name=new.name, created=False, queued=False)
    assert releases.accept(second, MANUAL, again=True).name == f"{new.name}-2"
    for name in list(server.workflows):
        del server.workflows[name]
    tags["digits", 3] = {"shiplift.release": f"{new.name}-2", "shiplift.outcome": "promoted"}
    assert not releases.accept(second, MANUAL).created


@given(st.text(max_size=300), st.text(max_size=100))
def test_no_parameter_holds_what_argo_would_take_for_an_expression(model: str, spec: str) -> None:
    sent: list[dict[str, Any]] = []

    class Created:
        def each(self, *_: Any) -> Iterator[Any]:
            return iter(())

        def create(self, body: dict[str, Any]) -> None:
            sent.append(body)

    api: Any = Created()
    request = Request(model="{{=" + model + "{{{{x}}", version=1, spec=f"# {{{{{spec}}}}}")
    try:
        ArgoReleases(api, lambda *_: {}).accept(request, WEBHOOK)
    except SpecInvalid:
        return
    text = json.dumps(sent[0]["spec"])
    assert "{{" not in text
    parameters = {item["name"]: item["value"] for item in sent[0]["spec"]["arguments"]["parameters"]}
    assert Request.model_validate_json(parameters["request"]) == request
    assert all(len(value) <= 63 for value in sent[0]["metadata"]["labels"].values())


def test_the_same_request_again_is_found(releases: ArgoReleases, server: ApiServer, tags: Tags) -> None:
    releases.accept(DIGITS, WEBHOOK)
    for trigger in (WEBHOOK, SWEEP, MANUAL):
        assert releases.accept(DIGITS, trigger) == Accepted(name=NAME, created=False, queued=False)
    assert releases.accept(DIGITS, MANUAL, again=True) == Accepted(name=NAME, created=False, queued=False)
    assert len(server.workflows) == 1
    assert tags.asked == 1


def test_fifty_at_once_over_two_replicas_make_one_workflow(server: ApiServer, tags: Tags) -> None:
    replicas = [ArgoReleases(server.api(), tags), ArgoReleases(server.api(), tags)]
    together = Barrier(50)

    def accept(number: int) -> Accepted:
        together.wait()
        return replicas[number % 2].accept(DIGITS, WEBHOOK)

    with ThreadPoolExecutor(50) as pool:
        accepted = list(pool.map(accept, range(50)))
    assert {release.name for release in accepted} == set(server.workflows) == {NAME}
    assert [release.created for release in accepted].count(True) == 1


@pytest.mark.parametrize("trigger", [WEBHOOK, SWEEP])
@pytest.mark.parametrize("phase", ["Succeeded", "Failed", "Error"])
def test_an_ended_release_is_not_started_again_by_a_machine(
    releases: ArgoReleases, server: ApiServer, trigger: Trigger, phase: str
) -> None:
    releases.accept(DIGITS, WEBHOOK)
    server.end(NAME, phase)
    assert releases.accept(DIGITS, trigger) == Accepted(name=NAME, created=False, queued=False)
    assert len(server.workflows) == 1


@pytest.mark.parametrize(("exit_code", "again"), [(0, False), (20, False), (30, False), (40, True), (75, True)])
def test_a_person_s_second_request_runs_what_ended_for_another_reason_than_the_model(
    releases: ArgoReleases, server: ApiServer, exit_code: int, again: bool
) -> None:
    releases.accept(DIGITS, WEBHOOK)
    server.end(NAME, nodes=concluded(exit_code))
    assert releases.accept(DIGITS, MANUAL).created is again
    assert set(server.workflows) == ({NAME, f"{NAME}-2"} if again else {NAME})


def test_reruns_are_numbered(releases: ArgoReleases, server: ApiServer) -> None:
    names = []
    for _ in range(11):
        names.append(releases.accept(DIGITS, MANUAL, again=True).name)
        server.end(names[-1], nodes=concluded(0))
    assert names == [NAME, *(f"{NAME}-{number}" for number in range(2, 12))]
    del server.workflows[NAME]  # its time was up; the later ones are still there
    assert releases.accept(DIGITS, WEBHOOK).name == f"{NAME}-11"
    assert releases.accept(DIGITS, MANUAL, again=True).name == f"{NAME}-12"


def test_reruns_by_several_at_once_are_one(server: ApiServer, tags: Tags) -> None:
    ArgoReleases(server.api(), tags).accept(DIGITS, WEBHOOK)
    server.end(NAME, nodes=concluded(20))
    together = Barrier(20)

    def rerun(_: int) -> Accepted:
        replica = ArgoReleases(server.api(), tags)
        together.wait()
        return replica.accept(DIGITS, MANUAL, again=True)

    with ThreadPoolExecutor(20) as pool:
        accepted = list(pool.map(rerun, range(20)))
    assert {release.name for release in accepted} == {f"{NAME}-2"}
    assert [release.created for release in accepted].count(True) == 1


def test_a_resubmitted_release_under_way_is_joined(releases: ArgoReleases, server: ApiServer) -> None:
    releases.accept(DIGITS, WEBHOOK)
    server.end(NAME)
    copy = json.loads(json.dumps(server.workflows[NAME])) | {"status": {"phase": "Running"}}
    copy["metadata"]["name"] = f"{NAME}-x7k2p"
    server.workflows[f"{NAME}-x7k2p"] = copy
    assert releases.accept(DIGITS, MANUAL, again=True).name == f"{NAME}-x7k2p"


def test_an_older_version_asked_for_by_hand_runs_again(releases: ArgoReleases, server: ApiServer) -> None:
    releases.accept(DIGITS, WEBHOOK)
    server.end(NAME, nodes=concluded(20))
    assert releases.accept(DIGITS, Trigger(kind="manual", allow_older=True)).name == f"{NAME}-2"


# --- when Argo has removed the Workflow ---


@pytest.mark.parametrize("trigger", [WEBHOOK, SWEEP])
@pytest.mark.parametrize("recorded", [NAME, f"{NAME}-2", "release-digits-3-0000000000"])
def test_a_version_that_was_released_is_not_started_by_a_machine(
    releases: ArgoReleases, server: ApiServer, tags: Tags, trigger: Trigger, recorded: str
) -> None:
    tags["digits", 3] = {"shiplift.release": recorded, "shiplift.outcome": "failed"}
    assert releases.accept(DIGITS, trigger) == Accepted(name=NAME, created=False, queued=False)
    assert server.workflows == {}


@pytest.mark.parametrize(
    ("recorded", "outcome", "created"),
    [
        (NAME, "promoted", False),
        (f"{NAME}-12", "refused", False),
        (NAME, "not admitted", False),
        (NAME, "failed", True),
        (NAME, "cancelled", True),
        ("release-digits-3-0000000000", "promoted", True),
        (f"{NAME}x", "promoted", True),
    ],
)
def test_a_person_gets_what_the_registry_says_was_not_decided(
    releases: ArgoReleases, tags: Tags, recorded: str, outcome: str, created: bool
) -> None:
    tags["digits", 3] = {"shiplift.release": recorded, "shiplift.outcome": outcome}
    assert releases.accept(DIGITS, MANUAL).created is created
    assert releases.accept(DIGITS, MANUAL, again=True).created is not created  # else it runs by now


# --- git ---


def test_a_spec_that_came_back_with_another_commit_is_released_again(releases: ArgoReleases, server: ApiServer) -> None:
    first = releases.accept(DIGITS, Trigger(kind="git", commit=A))
    server.end(first.name, nodes=concluded(0))
    assert not releases.accept(DIGITS, Trigger(kind="git", commit=A)).created
    assert releases.accept(DIGITS, Trigger(kind="git", commit=B)).name == f"{NAME}-2"
    server.end(f"{NAME}-2", nodes=concluded(0))
    assert not releases.accept(DIGITS, Trigger(kind="git", commit=A)).created  # a late copy of the first push
    assert len(server.workflows) == 2


def test_a_commit_that_the_registry_knows_is_not_released_again(releases: ArgoReleases, tags: Tags) -> None:
    tags["digits", 3] = {"shiplift.release": NAME, "shiplift.outcome": "failed", "shiplift.commit": A}
    assert not releases.accept(DIGITS, Trigger(kind="git", commit=A)).created
    assert releases.accept(DIGITS, Trigger(kind="git", commit=B)).created


def test_a_push_is_looked_into_once_unless_that_failed(releases: ArgoReleases, server: ApiServer) -> None:
    name = push_name("acme/models", A, B)
    assert releases.push(PUSH) == Accepted(name=name, created=True, queued=True)
    assert server.workflows[name]["spec"] == {
        "workflowTemplateRef": {"name": "git-push"},
        "arguments": {
            "parameters": [
                {"name": "repository", "value": "acme/models"},
                {"name": "before", "value": A},
                {"name": "after", "value": B},
            ]
        },
    }
    assert not releases.push(PUSH).created
    server.end(name, "Failed")
    assert releases.push(PUSH).name == f"{name}-2"
    server.end(f"{name}-2", "Succeeded")
    assert releases.push(PUSH) == Accepted(name=f"{name}-2", created=False, queued=False)


# --- looking, cancelling ---


def test_a_release_is_read_back(releases: ArgoReleases, server: ApiServer) -> None:
    releases.accept(DIGITS, WEBHOOK)
    releases.accept(Request(model="fraud", version=1), WEBHOOK)
    releases.push(PUSH)
    assert [run.request for run in releases.active("digits")] == [DIGITS]
    assert releases.result(NAME) is None
    server.end(NAME, "Failed", nodes=concluded(20))
    run = releases.get(NAME)
    assert (run.active, run.phase, run.concluded, run.attempt) == (False, "Failed", True, 1)
    assert releases.active("digits") == ()
    assert {run.name for run in releases.runs()} == {NAME, workflow_name("fraud", 1, "")}
    assert len(list(releases.everything())) == 3
    assert [run.push for run in releases.everything() if run.push] == [PUSH]
    result = releases.result(NAME)
    assert result is not None
    assert result.exit_code == 20


def test_a_stopped_workflow_says_why_in_place_of_argo_s_words(releases: ArgoReleases, server: ApiServer) -> None:
    releases.accept(DIGITS, WEBHOOK)
    releases.cancel(NAME, "its image is missing")
    server.end(NAME, "Failed", message="Stopped with strategy 'Stop'")
    releases.mark_counted(releases.get(NAME), "failed: its image is missing")
    assert server.workflows[NAME]["status"]["message"] == "failed: its image is missing"
    assert releases.get(NAME).counted


def test_more_releases_than_a_page_are_all_found(releases: ArgoReleases) -> None:
    for version in range(1, 121):
        releases.accept(Request(model="digits", version=version), WEBHOOK)
    assert len(list(releases.runs(model="digits"))) == 120


def test_a_report_told_afterwards_is_the_result_too(releases: ArgoReleases, server: ApiServer) -> None:
    releases.accept(DIGITS, WEBHOOK)
    server.end(NAME, "Failed")
    run = releases.get(NAME)
    assert not run.concluded
    assert [releases.conclude(run), releases.conclude(run)] == [concluding(NAME)] * 2
    spec = server.workflows[concluding(NAME)]["spec"]
    assert spec["workflowTemplateRef"] == {"name": "conclude"}
    parameters = {item["name"]: item["value"] for item in spec["arguments"]["parameters"]}
    assert parameters["release"] == NAME
    assert Request.model_validate_json(parameters["request"]) == DIGITS
    server.end(concluding(NAME), nodes=concluded(130))
    result = releases.result(NAME)
    assert result is not None
    assert result.exit_code == 130
    assert {run.name for run in releases.runs()} == {NAME}


def test_cancelling_stops_with_the_reason_and_leaves_an_ended_one_alone(
    releases: ArgoReleases, server: ApiServer
) -> None:
    releases.accept(DIGITS, WEBHOOK)
    releases.cancel(NAME, "its image is missing")
    assert server.workflows[NAME]["spec"]["shutdown"] == "Stop"
    assert server.workflows[NAME]["spec"]["workflowTemplateRef"] == {"name": "release"}
    assert releases.get(NAME).stopped_because == "its image is missing"
    server.end(NAME, "Failed")
    releases.terminate(NAME, "again")
    assert server.workflows[NAME]["spec"]["shutdown"] == "Stop"
    with pytest.raises(NotFound, match="there is no Workflow"):
        releases.cancel("release-none")


def test_the_time_of_installing_is_the_template_s(releases: ArgoReleases, server: ApiServer) -> None:
    assert releases.installed_at() is None
    server.objects["workflowtemplates"]["release"] = {"metadata": {"creationTimestamp": "2026-01-01T00:00:00Z"}}
    assert releases.installed_at() == 1767225600


# --- what goes wrong ---


@pytest.mark.parametrize("status", [0, 408, 429, 500, 502, 503, 504])
@pytest.mark.parametrize("late", [0, 1])
def test_a_cluster_that_fails_is_asked_again_later(
    releases: ArgoReleases, server: ApiServer, status: int, late: int
) -> None:
    server.workflows["other"] = {"metadata": {"name": "other"}}
    if late:
        real: Callable[..., Any] = releases._api.create

        def then_fail(*words: Any) -> Any:
            server.faults = [status]
            return real(*words)

        releases._api.__dict__["create"] = then_fail
    else:
        server.faults = [status]
    with pytest.raises(Temporary):
        releases.accept(DIGITS, WEBHOOK)
    assert NAME not in server.workflows


def test_a_receiver_killed_between_creating_and_answering_loses_nothing(
    releases: ArgoReleases, server: ApiServer
) -> None:
    real = releases._api.create

    def killed(*words: Any) -> Any:
        real(*words)
        raise KeyboardInterrupt

    releases._api.__dict__["create"] = killed
    with pytest.raises(KeyboardInterrupt):
        releases.accept(DIGITS, WEBHOOK)
    releases._api.__dict__["create"] = real
    assert releases.accept(DIGITS, WEBHOOK) == Accepted(name=NAME, created=False, queued=False)


@pytest.mark.parametrize("status", [401, 403, 404, 422])
def test_what_only_a_person_can_fix_says_so(releases: ArgoReleases, server: ApiServer, status: int) -> None:
    server.faults = [status]
    with pytest.raises(ClusterRefused):
        releases.accept(DIGITS, WEBHOOK)


def test_a_registry_that_is_away_starts_nothing(server: ApiServer) -> None:
    def away(*_: Any) -> dict[str, str]:
        raise Temporary("the registry is away", do="Wait.")

    with pytest.raises(Temporary):
        ArgoReleases(server.api(), away).accept(DIGITS, WEBHOOK)
    assert server.workflows == {}


def test_a_spec_too_large_for_a_parameter_is_refused_early(releases: ArgoReleases, server: ApiServer) -> None:
    with pytest.raises(SpecInvalid, match=f"the limit on a cluster is {MAX_REQUEST_BYTES}"):
        releases.accept(Request(model="digits", version=3, spec="#" * MAX_REQUEST_BYTES), MANUAL)
    assert server.asked == []


# --- decisions ---

YES, NO = Decision(approved=True, by="ana", reason="checked"), Decision(approved=False, by="bob")


def test_of_two_people_who_decide_at_once_the_first_counts_and_the_other_is_told(
    releases: ArgoReleases, server: ApiServer
) -> None:
    older = MANUAL.model_copy(update={"allow_older": True})
    releases.accept(DIGITS, older)
    server.end(NAME, "Failed", nodes=concluded(AwaitingApproval.exit_code))
    start = Barrier(2)

    def decide(decision: Decision) -> str:
        start.wait()
        try:
            return releases.decide(DIGITS, {}, decision).name
        except AlreadyDecided as error:
            return str(error)

    with ThreadPoolExecutor(2) as people:
        told = list(people.map(decide, (YES, NO)))
    trigger = releases.get(f"{NAME}-2").trigger
    assert trigger is not None
    assert trigger.allow_older
    first = 0 if trigger.decision == YES else 1
    assert told[first] == f"{NAME}-2"
    assert f"digits/3 was already {(YES, NO)[first].sentence}" in told[1 - first]
    server.end(f"{NAME}-2", nodes=concluded(0))
    with pytest.raises(AlreadyDecided):
        releases.decide(DIGITS, {}, NO)


def test_a_decision_may_come_after_argo_has_removed_the_workflow(releases: ArgoReleases) -> None:
    with pytest.raises(NothingToDecide):
        releases.decide(DIGITS, {f"{TAG}outcome": "promoted"}, YES)
    assert releases.decide(DIGITS, {f"{TAG}outcome": "waiting for approval"}, YES).created
    with pytest.raises(AlreadyDecided, match="already approved by ana: checked"):
        releases.decide(DIGITS, {f"{TAG}outcome": "waiting for approval"}, NO)
