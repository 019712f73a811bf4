"""What an installation consists of: golden files, and what holds of every object whatever the values."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from shiplift.pipelines.installation import manifests, values
from shiplift.pipelines.installation.values import Values
from shiplift.pipelines.triggers.settings import TriggerSettings
from shiplift.runtime.records.site import Site
from tests.unit.examples import Golden

EVERYTHING = """
namespace: team-a
images: {pipeline: example.org/pipeline:1, server: example.org/server:1, pull_policy: Always, pull_secrets: [pull]}
mlflow:
  storage: {kind: hostPath, path: /srv/mlflow, size: 10Gi}
  database: {kind: postgresql, secret: database, key: url, port: 6432}
  artifacts: s3://bucket/mlflow
  allowed_hosts: [mlflow.example.org]
receiver: {replicas: 3, trusted_proxies: [10.0.0.0/8]}
repositories: [{name: team/models, host: github, url: "https://git.example.org/team/models", credentials_secret: git}]
gateway: {class_name: istio, annotations: {example.org/owner: "team: a"}}
serving: {cpu: "1", memory_limit: 4Gi, quota: {pods: "20", requests.cpu: "16"}}
targets: [{name: fast, accelerator: cpu-vnni}]
stages: {tune: {cpu: "4"}}
network: {api_server: [10.0.0.1/32]}
"""


def text_of(found: Values) -> str:
    """All but the WorkflowTemplates, which have golden files of their own."""
    bodies = [one for part in manifests.PARTS if part != "workflows" for one in manifests.part_of(found, part)]
    return manifests.text_of(bodies)


@pytest.mark.parametrize(("name", "text"), [("default", ""), ("everything", EVERYTHING)])
def test_an_installation_is_the_golden_one(golden: Golden, name: str, text: str) -> None:
    golden(f"install.{name}.yaml", text_of(values.parse(text)))


def pods(found: Values) -> list[dict[str, Any]]:
    return [one["spec"]["template"]["spec"] for one in manifests.documents(found) if one["kind"] == "Deployment"]


@pytest.mark.parametrize("text", ["", EVERYTHING])
def test_every_pod_meets_the_restricted_standard(text: str) -> None:
    found = values.parse(text)
    assert len(pods(found)) == 3
    for pod in pods(found):
        assert pod["securityContext"]["runAsNonRoot"]
        assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        for one in pod["containers"]:
            assert one["securityContext"] == {
                "allowPrivilegeEscalation": False, "readOnlyRootFilesystem": True, "capabilities": {"drop": ["ALL"]},
            }  # fmt: skip
            assert one["resources"]["limits"]["memory"]
    for space in (one for one in manifests.documents(found) if one["kind"] == "Namespace"):
        assert space["metadata"]["labels"]["pod-security.kubernetes.io/enforce"] == "restricted"


@pytest.mark.parametrize("text", ["", EVERYTHING])
def test_everything_carries_the_label_by_which_it_is_found(text: str) -> None:
    documents = manifests.documents(values.parse(text))
    assert all(one["metadata"]["labels"][manifests.INSTALLED] == "true" for one in documents)
    names = [(one["kind"], one["metadata"].get("namespace"), one["metadata"]["name"]) for one in documents]
    assert len(set(names)) == len(names)


def test_no_role_reaches_secrets_or_the_whole_cluster() -> None:
    documents = manifests.documents(values.parse(EVERYTHING))
    assert not [one for one in documents if one["kind"].startswith("ClusterRole")]
    rules = [rule for one in documents if one["kind"] == "Role" for rule in one["rules"]]
    assert all("*" not in rule["verbs"] + rule["resources"] + rule["apiGroups"] for rule in rules)
    assert all("secrets" not in rule["resources"] for rule in rules)


def test_what_the_parts_are_told_can_be_read_back_and_holds_no_secret() -> None:
    found = values.parse(EVERYTHING)
    maps = {one["metadata"]["name"]: one["data"] for one in manifests.documents(found) if one["kind"] == "ConfigMap"}
    config = maps["shiplift-config"]
    assert TriggerSettings.model_validate_json(config["config.json"]) == found.triggers
    assert Site.model_validate_json(config["site.json"]) == found.site


def test_a_pod_of_the_receiver_is_replaced_when_what_it_is_told_changes() -> None:
    def mark(text: str) -> str:
        documents = manifests.documents(values.parse(text))
        (receiver,) = (one for one in documents if (one["kind"], one["metadata"]["name"]) == ("Deployment", "receiver"))
        return str(receiver["spec"]["template"]["metadata"]["annotations"]["shiplift.dev/config"])

    assert mark("") == mark("") != mark("receiver: {deliveries_per_minute: 10}")


def test_pods_that_load_models_reach_the_store_and_the_api_server_alone() -> None:
    documents = manifests.documents(values.parse(EVERYTHING))
    policies = {one["metadata"]["name"]: one["spec"] for one in documents if one["kind"] == "NetworkPolicy"}
    sandbox = policies["sandbox"]
    assert sandbox["podSelector"] == {"matchLabels": {"shiplift.dev/sandbox": "true"}}
    dns, api_server, registry = sandbox["egress"]
    assert {one["port"] for one in dns["ports"]} == {53}
    assert api_server["to"] == [{"ipBlock": {"cidr": "10.0.0.1/32"}}]
    assert registry["to"][0]["podSelector"] == {"matchLabels": {"app.kubernetes.io/name": "mlflow"}}
    assert {"key": "shiplift.dev/sandbox", "operator": "DoesNotExist"} in policies["steps"]["podSelector"][
        "matchExpressions"
    ]


def test_without_an_mlflow_of_ours_its_objects_are_not_there() -> None:
    found = values.parse("mlflow: {enabled: false, uri: 'https://mlflow.example.org:8443'}")
    names = {(one["kind"], one["metadata"]["name"]) for one in manifests.documents(found)}
    assert not names & {("Deployment", "mlflow"), ("Service", "mlflow"), ("NetworkPolicy", "mlflow")}
    policies = [one for one in manifests.documents(found) if one["metadata"]["name"] == "sandbox"]
    assert {"port": 8443} in [port for rule in policies[0]["spec"]["egress"] for port in rule["ports"]]
    assert "shiplift-mlflow" not in manifests.secret_keys(found)


def test_an_object_store_is_reached_on_its_own_ports_alone() -> None:
    found = values.parse("{artifacts_uri: 's3://bucket/x', network: {store_ports: [9000]}}")
    policies = {one["metadata"]["name"]: one for one in manifests.documents(found) if one["kind"] == "NetworkPolicy"}
    for name in ("models", "sandbox"):
        assert {"ports": [{"port": 9000}]} in policies[name]["spec"]["egress"]
    usual = [one for one in manifests.documents(Values()) if one["metadata"]["name"] == "models"]
    assert all("9000" not in str(one) for one in usual)


def test_render_writes_one_file_a_part_and_removes_what_is_no_longer_there(tmp_path: Path) -> None:
    written = manifests.render(values.parse("gateway: {class_name: x}"), tmp_path / "out")
    assert [path.name for path in written][:2] == ["10-namespaces.yaml", "20-access.yaml"]
    assert sorted(tmp_path.joinpath("out").iterdir()) == sorted(written)
    assert [one for path in written for one in yaml.safe_load_all(path.read_text())] == manifests.documents(
        values.parse("gateway: {class_name: x}")
    )
    again = manifests.render(Values(), tmp_path / "out")
    assert {path.name for path in written} - {path.name for path in again} == {"90-serving.yaml"}
    assert sorted(tmp_path.joinpath("out").iterdir()) == sorted(again)


def test_secrets_are_in_no_file_and_how_to_make_them_is_said() -> None:
    found = values.parse(EVERYTHING)
    secrets = [one for one in manifests.documents(found) if one["kind"] == "Secret"]
    assert [one["type"] for one in secrets] == ["kubernetes.io/service-account-token"]
    assert all("data" not in one and "stringData" not in one for one in secrets)
    said = "\n".join(manifests.left_to_do(found))
    for name, keys in manifests.secret_keys(found).items():
        assert name in said
        assert all(key in said for key in keys)


def test_the_ledger_s_secret_is_the_only_one_that_a_step_gets() -> None:
    made = json.loads(manifests.secret_keys(Values())["shiplift-ledger"]["secrets.json"]())
    assert (made["webhook"], made["mlflow"]) == ("", "")
    assert len(made["ledger"]) >= 32
