"""Pushes as GitHub and GitLab announce them, signed in each of their ways."""

import base64
import hashlib
import hmac
import json
import secrets
import time
from pathlib import Path
from typing import Any, Literal

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shiplift.pipelines.engines.answers import Accepted
from shiplift.pipelines.engines.argo.workflows import Push
from shiplift.pipelines.triggers.intake import Intake
from shiplift.pipelines.triggers.pushes import NO_COMMIT, read_push
from shiplift.pipelines.triggers.receiver import MAX_PUSH_BYTES, create_app
from shiplift.pipelines.triggers.settings import DeliveryLimits, Repository, TriggerSettings
from shiplift.pipelines.triggers.signatures import MAX_AGE_S, check_github, check_gitlab, check_mlflow
from shiplift.runtime.base.errors import Temporary
from tests.unit.examples import found
from tests.unit.pipelines.triggers.test_receiver import send

SECRET = "the repository's secret"
SIGNING = "whsec_" + base64.b64encode(b"k" * 32).decode()
A, B = "a" * 40, "b" * 40
Host = Literal["github", "gitlab"]
SETTINGS = TriggerSettings(
    namespace="shiplift",
    registry_uri="http://mlflow",
    repositories=(
        Repository(name="acme/models", host="github", url="https://example.org/acme/models"),
        Repository(name="acme/team/specs", host="gitlab", url="https://example.org/specs", branch="release"),
    ),
)


class Desk:
    """A receiver on a cluster, and hosts that announce pushes to it."""

    def __init__(self) -> None:
        self.pushes: list[Push] = []
        self.failing: list[Exception] = []
        self.github: tuple[str, ...] = (SECRET,)
        self.gitlab: tuple[str, ...] = (SECRET,)
        self.app = create_app(
            Intake(
                accept=lambda *_: Accepted(name="x", created=True, queued=True),
                find_version=found,
                mlflow=lambda: (SECRET,),
                push=self._push,
                find=SETTINGS.repository,
                github=lambda: self.github,
                gitlab=lambda: self.gitlab,
            ),
            DeliveryLimits(deliveries_per_minute=10_000),
        )

    def _push(self, push: Push) -> Accepted:
        if self.failing:
            raise self.failing.pop()
        created = push not in self.pushes
        self.pushes.append(push)
        return Accepted(name=f"git-{push.after[:12]}", created=created, queued=created)

    def post(self, host: Host, body: bytes, **headers: str) -> httpx.Response:
        (answer,) = send(self.app, (f"/webhooks/{host}", {"content": body, "headers": headers}))
        return answer


@pytest.fixture
def desk() -> Desk:
    return Desk()


def github(name: str = "acme/models", **changes: Any) -> bytes:
    body = {
        "ref": "refs/heads/main",
        "before": A,
        "after": B,
        "forced": False,
        "deleted": False,
        "repository": {"full_name": name, "clone_url": "https://evil.example.org/x"},
        "commits": [{"id": B}],
    }
    return json.dumps(body | changes).encode()


def gitlab(name: str = "acme/team/specs", **changes: Any) -> bytes:
    body = {
        "object_kind": "push",
        "ref": "refs/heads/release",
        "before": A,
        "after": B,
        "checkout_sha": B,
        "project": {"path_with_namespace": name, "git_http_url": "https://evil.example.org/x"},
    }
    return json.dumps(body | changes).encode()


def signed(body: bytes, secret: str = SECRET, event: str = "push") -> dict[str, str]:
    mac = hmac.new(secret.encode(), body, hashlib.sha256).hexdigest()
    return {"X-Hub-Signature-256": f"sha256={mac}", "X-GitHub-Event": event, "X-GitHub-Delivery": "1"}


def with_token(token: str = SECRET, event: str = "Push Hook") -> dict[str, str]:
    return {"X-Gitlab-Token": token, "X-Gitlab-Event": event}


def with_signature(body: bytes, secret: str = SIGNING, age_s: float = 0) -> dict[str, str]:
    at = str(int(time.time() - age_s))
    key = base64.b64decode(secret.removeprefix("whsec_"))
    mac = base64.b64encode(hmac.new(key, f"msg-1.{at}.".encode() + body, hashlib.sha256).digest()).decode()
    return {
        "webhook-id": "msg-1",
        "webhook-timestamp": at,
        "webhook-signature": f"v1,{mac}",
        "X-Gitlab-Event": "Push Hook",
    }


# --- GitHub ---


def test_a_signed_push_is_looked_into(desk: Desk) -> None:
    answer = desk.post("github", github(), **signed(github()))
    assert (answer.status_code, answer.text) == (202, f"accepted: git-{'b' * 12}\n")
    assert desk.pushes == [Push(repository="acme/models", before=A, after=B)]
    assert desk.post("github", github(), **signed(github())).text.startswith("already there")


def test_github_s_own_example_of_a_signature_is_right() -> None:
    """From its documentation, "Validating webhook deliveries"."""
    headers = {"x-hub-signature-256": "sha256=757107ea0eb2509fc211221cce984b8a37570b6d7586c22c46f4379c8b043e17"}
    assert check_github(["It's a Secret to Everybody"], headers, b"Hello, World!") is None
    assert check_github(["It's a Secret to Everybody"], headers, b"Hello, World?") is not None


def test_a_ping_is_answered_if_it_is_signed(desk: Desk) -> None:
    body = b'{"zen": "Keep it logically awesome."}'
    assert desk.post("github", body, **signed(body, event="ping")).status_code == 200
    assert desk.post("github", body, **signed(body, "guessed", event="ping")).status_code == 401


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"X-GitHub-Event": "push"},
        {"X-Hub-Signature-256": ""},
        {"X-Hub-Signature-256": "sha256="},
        {"X-Hub-Signature-256": "sha256=" + "0" * 64},
        {"X-Hub-Signature": "sha1=" + hmac.new(SECRET.encode(), github(), hashlib.sha1).hexdigest()},
        signed(github(after=A)),
        signed(github(), "guessed"),
    ],
)
def test_a_push_that_is_not_genuine_is_refused(desk: Desk, headers: dict[str, str]) -> None:
    answer = desk.post("github", github(), **headers)
    assert (answer.status_code, desk.pushes) == (401, [])


def test_each_of_two_secrets_is_right(desk: Desk) -> None:
    desk.github = desk.gitlab = ("new", SECRET)
    for secret in ("new", SECRET):
        assert desk.post("github", github(), **signed(github(), secret)).status_code == 202
        assert desk.post("gitlab", gitlab(), **with_token(secret)).status_code == 202
    desk.github = desk.gitlab = ()
    assert desk.post("github", github(), **signed(github(), "")).status_code == 401
    assert desk.post("gitlab", gitlab(), **with_token("")).status_code == 401


@pytest.mark.parametrize("event", ["pull_request", "create", "check_suite", ""])
def test_other_events_of_github_start_nothing(desk: Desk, event: str) -> None:
    assert desk.post("github", github(), **signed(github(), event=event)).status_code == 200
    assert desk.pushes == []


# --- GitLab ---


def test_a_push_with_the_right_token_is_looked_into(desk: Desk) -> None:
    assert desk.post("gitlab", gitlab(), **with_token()).status_code == 202
    assert desk.pushes == [Push(repository="acme/team/specs", before=A, after=B)]


@pytest.mark.parametrize("headers", [{}, with_token("guessed"), with_token(SECRET + " x"), {"X-Gitlab-Token": ""}])
def test_a_push_without_the_right_token_is_refused(desk: Desk, headers: dict[str, str]) -> None:
    assert (desk.post("gitlab", gitlab(), **headers).status_code, desk.pushes) == (401, [])


def test_a_push_signed_with_a_signing_token_is_looked_into(desk: Desk) -> None:
    desk.gitlab = (SIGNING,)
    assert desk.post("gitlab", gitlab(), **with_signature(gitlab())).status_code == 202
    assert desk.post("gitlab", gitlab(after=A), **with_signature(gitlab())).status_code == 401
    assert desk.post("gitlab", gitlab(), **with_signature(gitlab(), age_s=MAX_AGE_S + 5)).status_code == 409


def test_a_signing_token_is_never_taken_as_a_plain_one(desk: Desk) -> None:
    desk.gitlab = (SIGNING,)
    assert desk.post("gitlab", gitlab(), **with_token(SIGNING)).status_code == 401
    desk.gitlab = (SECRET,)
    key = "whsec_" + base64.b64encode(SECRET.encode()).decode()
    assert desk.post("gitlab", gitlab(), **with_signature(gitlab(), key)).status_code == 401
    desk.gitlab = ("whsec_", "whsec_not base64!")
    assert desk.post("gitlab", gitlab(), **with_signature(gitlab(), "whsec_")).status_code == 401


def test_the_standard_s_own_example_is_right() -> None:
    """From the Standard Webhooks specification."""
    body = b'{"event_type":"ping","data":{"success":true}}'
    headers = {
        "webhook-id": "msg_loFOjxBNrRLzqYUf",
        "webhook-timestamp": "1731705121",
        "webhook-signature": "v1,rAvfW3dJ/X/qxhsaXPOyyCGmRKsaKWcsNccKXlIktD0=",
    }
    assert check_gitlab(["whsec_plJ3nmyCDGBKInavdOK15jsl"], headers, body, now=1731705121) is None
    assert check_gitlab(["whsec_plJ3nmyCDGBKInavdOK15jsl"], headers, body + b" ", now=1731705121) is not None


@pytest.mark.parametrize("event", ["Tag Push Hook", "Merge Request Hook", "System Hook", ""])
def test_other_events_of_gitlab_start_nothing(desk: Desk, event: str) -> None:
    assert desk.post("gitlab", gitlab(), **with_token(event=event)).status_code == 200
    assert desk.pushes == []


# --- both ---


@pytest.mark.parametrize(
    ("body", "status"),
    [
        (github("acme/other"), 403),
        (github("evil/models"), 403),
        (github("acme/team/specs"), 403),  # listed, but for another host
        (github(ref="refs/heads/release"), 200),
        (github(ref="refs/tags/main"), 200),
        (github(ref="main"), 200),
        (github(after=NO_COMMIT, deleted=True), 200),
        (github(after="HEAD"), 200),
        (github(after="--upload-pack=x"), 200),
        (github(before="a" * 39), 200),
        (github(repository={}), 200),
        (github(repository="acme/models"), 200),
        (github("x" * 201), 200),
        (b"", 200),
        (b"payload=%7B%7D", 200),
        (b"[" * 60_000, 200),
    ],
)
def test_only_new_commits_on_a_listed_branch_count(desk: Desk, body: bytes, status: int) -> None:
    assert (desk.post("github", body, **signed(body)).status_code, desk.pushes) == (status, [])


def test_a_new_branch_and_another_spelling_of_the_name_count(desk: Desk) -> None:
    body = github("Acme/Models", before=NO_COMMIT)
    assert desk.post("github", body, **signed(body)).status_code == 202
    assert desk.pushes == [Push(repository="acme/models", before=NO_COMMIT, after=B)]


def test_a_push_of_many_commits_is_taken_and_one_beyond_measure_is_not(desk: Desk) -> None:
    commits = [{"id": B, "message": "x" * 500, "added": ["releases/a.yaml"]}] * 2048
    body = github(commits=commits)
    assert len(body) > 1_000_000
    assert desk.post("github", body, **signed(body)).status_code == 202
    large = github(padding="x" * MAX_PUSH_BYTES)
    assert desk.post("github", large, **signed(large)).status_code == 413


def test_a_push_works_again_once_the_cluster_is_back(desk: Desk) -> None:
    desk.failing = [Temporary("the cluster does not answer", do="Wait.")]
    answer = desk.post("github", github(), **signed(github()))
    assert (answer.status_code, answer.headers["retry-after"], desk.pushes) == (503, "2", [])
    assert desk.post("github", github(), **signed(github())).status_code == 202


def test_one_machine_takes_no_pushes() -> None:
    intake = Intake(
        accept=lambda *_: Accepted(name="x", created=True, queued=True),
        find_version=found,
        mlflow=lambda: (SECRET,),
    )
    answers = send(create_app(intake), ("/webhooks/github", {}), ("/webhooks/gitlab", {}))
    assert [answer.status_code for answer in answers] == [404, 404]


HEADERS = st.dictionaries(
    st.sampled_from(
        [
            "x-hub-signature-256",
            "x-gitlab-token",
            "webhook-id",
            "webhook-timestamp",
            "webhook-signature",
            "x-mlflow-delivery-id",
            "x-mlflow-timestamp",
            "x-mlflow-signature",
        ]
    ),
    st.text(max_size=80),
)


@given(HEADERS, st.binary(max_size=200), st.lists(st.sampled_from([SECRET, SIGNING, "whsec_x"]), max_size=3))
def test_nothing_made_up_is_genuine_and_nothing_fails(headers: dict[str, str], body: bytes, known: list[str]) -> None:
    known = [*known, secrets.token_hex(16)]
    assert check_github(known, headers, body) is not None
    assert check_gitlab(known, headers, body, now=0) is not None or headers["x-gitlab-token"] in known
    assert check_mlflow(known, headers, body, now=0) is not None


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=10), inner, max_size=3),
    max_leaves=10,
)


@given(
    st.sampled_from(["github", "gitlab"]),
    st.dictionaries(st.sampled_from(["ref", "before", "after", "repository", "project", "object_kind"]), JSON),
    st.binary(max_size=50),
)
def test_any_payload_is_a_push_or_gets_an_answer(host: Any, changes: dict[str, Any], noise: bytes) -> None:
    whole = json.loads(github() if host == "github" else gitlab())
    for body in (json.dumps(whole | changes).encode(), noise):
        read = read_push(host, body, SETTINGS.repository)
        if isinstance(read, Push):
            assert read.repository in ("acme/models", "acme/team/specs")
            assert {len(read.before), len(read.after)} <= {40, 64}
        else:
            assert read[0] in (200, 403)


def test_settings_tell_what_is_wrong(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="too similar"):
        TriggerSettings(
            namespace="a",
            registry_uri="b",
            repositories=(
                Repository(name="a/b-c", host="github", url="https://example.org/1"),
                Repository(name="a/b.c", host="github", url="https://example.org/2"),
            ),
        )
