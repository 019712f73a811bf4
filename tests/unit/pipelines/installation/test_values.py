from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from shiplift.pipelines.engines.argo.templates import Size
from shiplift.pipelines.installation import manifests, values
from shiplift.pipelines.installation.values import Values
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
    ("text", "said"),
    [
        ("gatewy: {}", "gatewy: there is no such field; did you mean 'gateway'?"),
        ("mlflow: {storage: {sise: 1Gi}}", "mlflow.storage.sise: there is no such field; did you mean 'size'?"),
        ("namespace: Bad_Name", "namespace: string should match pattern"),
        ("{namespace: a, serving_namespace: a}", "another than `namespace`"),
        ("mlflow: {enabled: false}", "`uri` is given with `enabled: false`"),
        ("mlflow: {uri: 'http://x'}", "`uri` is given with `enabled: false`"),
        ("mlflow: {enabled: false, uri: 'ftp://x'}", "begins with http"),
        ("mlflow: {enabled: false, uri: 'http://u:secret@x'}", "holds credentials"),
        ("mlflow: {storage: {kind: hostPath}}", "`path` is given for hostPath"),
        ("mlflow: {storage: {path: /x}}", "`path` is given for hostPath"),
        ("mlflow: {storage: {kind: hostPath, path: ../x}}", "is not absolute"),
        ("mlflow: {storage: {kind: hostPath, path: /a/../x}}", "is not absolute"),
        ("mlflow: {storage: {size: lots}}", "mlflow.storage.size"),
        ("artifacts_uri: file:///x", "one that every pod reaches"),
        ("artifacts_uri: /x", "one that every pod reaches"),
        ("stages: {frobnicate: {cpu: 1}}", "there is no stage 'frobnicate'; there are: admit"),
        ("gateway: {class_name: eg, http_port: 80, grpc_port: 80}", "are the same"),
        ("repositories: [{name: a/b, host: github, url: 'https://u:p@x/y'}]", "must contain no credentials"),
        ("repositories: [{name: a/b, host: gitea, url: 'https://x/y'}]", "repositories.0.host"),
        ("network: {api_server: [anywhere]}", "network.api_server.0"),
        ("receiver: {replicas: 0}", "receiver.replicas"),
        ("[1, 2]", "the values file is a list"),
        ("a: {", "the values file is not YAML"),
    ],
)
def test_wrong_values_are_named_before_anything_is_applied(text: str, said: str) -> None:
    with pytest.raises(SpecInvalid) as error:
        values.parse(text)
    assert said in error.value.what
    assert "secret" not in error.value.what


def test_the_serving_namespace_follows_the_namespace_given_by_hand(tmp_path: Path) -> None:
    assert values.parse("", namespace="team-a").serving_namespace == "team-a-serving"
    (tmp_path / "values.yaml").write_text("{namespace: b, serving_namespace: models}")
    found = values.read(tmp_path / "values.yaml", namespace="team-a")
    assert (found.namespace, found.serving_namespace) == ("team-a", "models")


def test_a_file_that_is_not_there_is_a_usage_error(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="can't be read"):
        values.read(tmp_path / "nowhere.yaml")


@pytest.mark.parametrize(
    ("text", "registry", "artifacts"),
    [
        ("", "http://mlflow.shiplift.svc:5000", "mlflow-artifacts://mlflow.shiplift.svc:5000/shiplift"),
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


def test_a_stage_s_size_fills_in_what_is_not_given() -> None:
    found = values.parse("stages: {gate: {memory: 1Gi}, tune: {cpu: 3}}").template_settings.sizes
    assert found == {"gate": Size(cpu="500m", memory="1Gi"), "tune": Size(cpu="3", memory="2Gi")}


def test_a_repository_s_secrets_are_files_where_it_is_read() -> None:
    found = values.parse(
        "repositories: [{name: a/b, host: gitlab, url: 'ssh://git@x/y', ssh_secret: key}, "
        "{name: a/c, host: github, url: 'https://x/z', credentials_secret: token}]"
    )
    ssh, token = found.triggers.repositories
    assert (ssh.ssh_key, ssh.known_hosts) == (
        Path("/etc/shiplift/git/key/key"),
        Path("/etc/shiplift/git/key/known_hosts"),
    )
    assert token.credentials == Path("/etc/shiplift/git/token/credentials")
    assert found.git_secrets == ("key", "token")


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
                    ).filter(lambda one: ".." not in Path(one["path"]).parts),
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


@settings(max_examples=40, deadline=None)
@given(body=_any_values)
def test_any_values_give_objects_whose_texts_are_what_was_given(body: dict[str, Any]) -> None:
    found = values.parse(yaml.safe_dump(body))
    documents = [one for part in manifests.PARTS if part != "workflows" for one in manifests.part_of(found, part)]
    assert list(yaml.safe_load_all(manifests.text_of(documents))) == documents
    spaces = {one["metadata"].get("namespace") for one in documents}
    assert spaces <= {None, found.namespace, found.serving_namespace}
    by_name = {(one["kind"], one["metadata"]["name"]): one for one in documents}
    assert len(by_name) >= len(documents) - 4  # the same names in both namespaces
    (mlflow,) = by_name["Deployment", "mlflow"]["spec"]["template"]["spec"]["containers"]
    assert mlflow["args"][-1] == f"--artifacts-destination={found.mlflow.artifacts or '/data/artifacts'}"
    if found.mlflow.storage.kind == "hostPath":
        volume = by_name["PersistentVolume", f"{found.namespace}-mlflow"]
        assert volume["spec"]["hostPath"]["path"] == found.mlflow.storage.path
    if found.gateway:
        marks = by_name["Gateway", "shiplift"]["metadata"].get("annotations", {})
        assert marks == found.gateway.annotations
