from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from shiplift.pipelines.engines.argo.template_settings import Size
from shiplift.pipelines.installation import manifests, values
from shiplift.pipelines.installation.values import Values
from shiplift.runtime.base import libyaml
from shiplift.runtime.base.errors import SpecInvalid, UsageError


def test_the_commented_file_says_every_field_and_its_default() -> None:
    assert values.parse(values.commented()) == Values() == values.parse("")
    written = yaml.safe_load(values.commented())
    assert set(written) == set(Values.model_fields)
    for name in ("images", "mlflow", "receiver", "reconciler", "serving", "keep", "network"):
        assert set(written[name]) == set(type(getattr(Values(), name)).model_fields), name
    assert set(written["mlflow"]["storage"]) == set(values.Storage.model_fields)
    assert set(written["mlflow"]["database"]) == set(values.Database.model_fields)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("gatewy: {}", "gatewy: there is no such field; did you mean 'gateway'?"),
        ("mlflow: {storage: {sise: 1Gi}}", "mlflow.storage.sise: there is no such field; did you mean 'size'?"),
        ("namespace: Bad_Name", "namespace: string should match pattern"),
        ("{namespace: a, serving_namespace: a}", "must differ from `namespace`"),
        ("mlflow: {enabled: false}", "`uri` is required with `enabled: false`"),
        ("mlflow: {uri: 'http://x'}", "`uri` is required with `enabled: false`"),
        ("mlflow: {enabled: false, uri: 'ftp://x'}", "must begin with http"),
        ("mlflow: {enabled: false, uri: 'http://u:secret@x'}", "contains credentials"),
        ("mlflow: {storage: {kind: hostPath}}", "`path` is required for hostPath"),
        ("mlflow: {storage: {path: /x}}", "`path` is required for hostPath"),
        ("mlflow: {storage: {kind: hostPath, path: ../x}}", "is not absolute"),
        ("mlflow: {storage: {kind: hostPath, path: /a/../x}}", "is not absolute"),
        ("mlflow: {storage: {size: lots}}", "mlflow.storage.size"),
        ("artifacts_uri: file:///x", "must be reachable from every pod"),
        ("artifacts_uri: /x", "must be reachable from every pod"),
        ("stages: {frobnicate: {cpu: 1}}", "there is no stage 'frobnicate'; the stages are: admit"),
        ("gateway: {class_name: eg, http_port: 80, grpc_port: 80}", "http_port and grpc_port must differ"),
        ("{gateway: {class_name: eg}, ingress: {class_name: nginx, host: x.org}}", "exclude each other"),
        ("ingress: {class_name: nginx, host: '*.x.org'}", "ingress.host"),
        ("repositories: [{name: a/b, host: github, url: 'https://u:p@x/y'}]", "must contain no credentials"),
        ("repositories: [{name: a/b, host: gitea, url: 'https://x/y'}]", "repositories.0.host"),
        ("network: {api_server: [anywhere]}", "network.api_server.0"),
        ("receiver: {replicas: 0}", "receiver.replicas"),
        ("[1, 2]", "the values file is a list"),
        ("a: {", "the values file is not YAML"),
    ],
)
def test_wrong_values_are_named_before_anything_is_applied(text: str, message: str) -> None:
    with pytest.raises(SpecInvalid) as error:
        values.parse(text)
    assert message in error.value.what
    assert "secret" not in error.value.what


def test_the_serving_namespace_follows_the_namespace_given_by_hand(tmp_path: Path) -> None:
    assert values.parse("", namespace="team-a").serving_namespace == "team-a-serving"
    (tmp_path / "values.yaml").write_text("{namespace: b, serving_namespace: models}")
    read = values.read(tmp_path / "values.yaml", namespace="team-a")
    assert (read.namespace, read.serving_namespace) == ("team-a", "models")


def test_a_file_that_is_not_there_is_a_usage_error(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="can't be read"):
        values.read(tmp_path / "nowhere.yaml")


@pytest.mark.parametrize(
    ("text", "registry", "artifacts"),
    [
        ("", "http://mlflow.shiplift.svc:5000", "mlflow-artifacts://mlflow.shiplift.svc:5000/0/shiplift"),
        (
            "mlflow: {enabled: false, uri: 'https://mlflow.example.org/'}",
            "https://mlflow.example.org",
            "mlflow-artifacts+https://mlflow.example.org/shiplift",
        ),
        ("artifacts_uri: s3://bucket/x", "http://mlflow.shiplift.svc:5000", "s3://bucket/x"),
    ],
)
def test_where_records_and_bytes_are_kept(text: str, registry: str, artifacts: str) -> None:
    site = values.parse(text).site
    assert (site.registry_uri, site.artifacts_uri) == (registry, artifacts)


def test_the_page_s_address_is_where_releases_link_to_and_one_of_its_names() -> None:
    assert not values.parse("page: {}").site.page
    read = values.parse("page: {url: 'https://ml.example.com/', hosts: [other.example.com]}")
    assert read.site.page_of("digits", 3) == "https://ml.example.com/release?model=digits&version=3"
    assert read.page is not None
    assert read.page.names == ("other.example.com", "ml.example.com")
    with pytest.raises(SpecInvalid, match="url"):
        values.parse("page: {url: 'javascript:alert(1)'}")


def test_a_stage_s_size_fills_in_what_is_not_given() -> None:
    sizes = values.parse("stages: {gate: {memory: 1Gi}, tune: {cpu: 3}}").template_settings.sizes
    assert sizes == {"gate": Size(cpu="500m", memory="1Gi"), "tune": Size(cpu="3", memory="2Gi")}


def test_a_repository_s_secrets_are_files_where_it_is_read() -> None:
    parsed = values.parse(
        "repositories: [{name: a/b, host: gitlab, url: 'ssh://git@x/y', ssh_secret: key}, "
        "{name: a/c, host: github, url: 'https://x/z', credentials_secret: token}]"
    )
    ssh, token = parsed.triggers.repositories
    assert (ssh.ssh_key, ssh.known_hosts) == (
        Path("/etc/shiplift/git/key/key"),
        Path("/etc/shiplift/git/key/known_hosts"),
    )
    assert token.credentials == Path("/etc/shiplift/git/token/credentials")
    assert parsed.git_secrets == ("key", "token")


def test_targets_of_events_read_their_secrets_from_files() -> None:
    target = "{name: chat, format: slack, url_file: /etc/shiplift/events/slack}"
    parsed = values.parse(f"events: {{secret: hooks, targets: [{target}, {{name: ops, url: 'http://x:8088/'}}]}}")
    assert [each.name for each in parsed.triggers.events.targets] == ["chat", "ops"]
    assert parsed.events.ports == (443, 8088)
    assert "events" not in values.parse("").triggers.model_dump()
    for wrong in ("{name: ops, url_env: X}", "{name: ops, url: 'https://x', hook: true}"):
        with pytest.raises(SpecInvalid, match="target 'ops'"):
            values.parse(f"events: {{targets: [{wrong}]}}")


# --- any values -----------------------------------------------------------------------------------------------------

_labels = st.from_regex(r"[a-z0-9]([a-z0-9-]{0,30}[a-z0-9])?", fullmatch=True)
_quantities = st.sampled_from(["1", "250m", "1.5", "512Mi", "2Gi"])
_resources = st.fixed_dictionaries(
    {}, optional={"cpu": _quantities, "memory": _quantities, "memory_limit": _quantities}
)
_texts = st.text(max_size=20)
_any_values = st.fixed_dictionaries(
    {"namespace": _labels},
    optional={
        "mlflow": st.fixed_dictionaries(
            {},
            optional={
                "storage": st.one_of(
                    st.just({"kind": "emptyDir"}),
                    st.fixed_dictionaries(
                        {"kind": st.just("hostPath"), "path": _texts.map(lambda text: f"/{text}")}
                    ).filter(lambda storage: ".." not in Path(storage["path"]).parts),
                ),
                "database": st.just({"kind": "postgresql"}),
                "artifacts": _texts,
                "allowed_hosts": st.lists(_texts, max_size=3),
                "resources": _resources,
            },
        ),
        "receiver": st.fixed_dictionaries({}, optional={"replicas": st.integers(1, 9), "resources": _resources}),
        "gateway": st.fixed_dictionaries(
            {"class_name": _labels}, optional={"annotations": st.dictionaries(_labels, _texts, max_size=3)}
        ),
        "serving": st.fixed_dictionaries({}, optional={"quota": st.just({"pods": "3", "requests.cpu": "2"})}),
        "network": st.sampled_from([{"policies": False}, {"api_server": ["10.0.0.1/32", "fd00::1/128"]}]),
        "images": st.fixed_dictionaries({}, optional={"pull_secrets": st.lists(_labels, max_size=2)}),
    },
)


@settings(max_examples=settings().max_examples // 3)
@given(body=_any_values)
def test_any_values_give_objects_whose_texts_are_what_was_given(body: dict[str, Any]) -> None:
    parsed = values.parse(yaml.safe_dump(body))
    documents = [body for part in manifests.PARTS if part != "workflows" for body in manifests.part_of(parsed, part)]
    assert list(libyaml.load_all(manifests.text_of(documents))) == documents
    namespaces = {body["metadata"].get("namespace") for body in documents}
    assert namespaces <= {None, parsed.namespace, parsed.serving_namespace}
    by_name = {(body["kind"], body["metadata"]["name"]): body for body in documents}
    assert len(by_name) >= len(documents) - 4  # the same names in both namespaces
    (mlflow,) = by_name["Deployment", "mlflow"]["spec"]["template"]["spec"]["containers"]
    assert mlflow["args"][-1] == f"--artifacts-destination={parsed.mlflow.artifacts or '/data/artifacts'}"
    if parsed.mlflow.storage.kind == "hostPath":
        volume = by_name["PersistentVolume", f"{parsed.namespace}-mlflow"]
        assert volume["spec"]["hostPath"]["path"] == parsed.mlflow.storage.path
    if parsed.gateway:
        marks = by_name["Gateway", "shiplift"]["metadata"].get("annotations", {})
        assert marks == parsed.gateway.annotations
