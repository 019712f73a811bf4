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


def text_of(parsed: Values) -> str:
    """All but the WorkflowTemplates, which have golden files of their own."""
    bodies = [body for part in manifests.PARTS if part != "workflows" for body in manifests.part_of(parsed, part)]
    return manifests.text_of(bodies)


@pytest.mark.parametrize(("name", "text"), [("default", ""), ("everything", EVERYTHING)])
def test_an_installation_is_the_golden_one(golden: Golden, name: str, text: str) -> None:
    golden(f"install.{name}.yaml", text_of(values.parse(text)))


def pods(parsed: Values) -> list[dict[str, Any]]:
    return [body["spec"]["template"]["spec"] for body in manifests.documents(parsed) if body["kind"] == "Deployment"]


@pytest.mark.parametrize("text", ["", EVERYTHING])
def test_every_pod_meets_the_restricted_standard(text: str) -> None:
    parsed = values.parse(text)
    assert len(pods(parsed)) == 3
    for pod in pods(parsed):
        assert pod["securityContext"]["runAsNonRoot"]
        assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        for container in pod["containers"]:
            assert container["securityContext"] == {
                "allowPrivilegeEscalation": False, "readOnlyRootFilesystem": True, "capabilities": {"drop": ["ALL"]},
            }  # fmt: skip
            assert container["resources"]["limits"]["memory"]
    for namespace in (body for body in manifests.documents(parsed) if body["kind"] == "Namespace"):
        assert namespace["metadata"]["labels"]["pod-security.kubernetes.io/enforce"] == "restricted"


@pytest.mark.parametrize("text", ["", EVERYTHING])
def test_everything_carries_the_label_that_selects_it(text: str) -> None:
    documents = manifests.documents(values.parse(text))
    assert all(body["metadata"]["labels"][manifests.INSTALLED] == "true" for body in documents)
    names = [(body["kind"], body["metadata"].get("namespace"), body["metadata"]["name"]) for body in documents]
    assert len(set(names)) == len(names)


def test_no_role_reaches_secrets_or_the_whole_cluster() -> None:
    documents = manifests.documents(values.parse(EVERYTHING))
    assert not [body for body in documents if body["kind"].startswith("ClusterRole")]
    rules = [rule for body in documents if body["kind"] == "Role" for rule in body["rules"]]
    assert all("*" not in rule["verbs"] + rule["resources"] + rule["apiGroups"] for rule in rules)
    assert all("secrets" not in rule["resources"] for rule in rules)


def test_what_the_parts_are_told_can_be_read_back_and_holds_no_secret() -> None:
    parsed = values.parse(EVERYTHING)
    maps = {
        body["metadata"]["name"]: body["data"] for body in manifests.documents(parsed) if body["kind"] == "ConfigMap"
    }
    config = maps["shiplift-config"]
    assert TriggerSettings.model_validate_json(config["config.json"]) == parsed.triggers
    assert Site.model_validate_json(config["site.json"]) == parsed.site


def test_a_pod_of_the_receiver_is_replaced_when_what_it_is_told_changes() -> None:
    def mark(text: str) -> str:
        documents = manifests.documents(values.parse(text))
        (receiver,) = (
            body for body in documents if (body["kind"], body["metadata"]["name"]) == ("Deployment", "receiver")
        )
        return str(receiver["spec"]["template"]["metadata"]["annotations"]["shiplift.dev/config"])

    assert mark("") == mark("") != mark("receiver: {deliveries_per_minute: 10}")


def test_pods_that_load_models_reach_the_store_and_the_api_server_alone() -> None:
    documents = manifests.documents(values.parse(EVERYTHING))
    policies = {body["metadata"]["name"]: body["spec"] for body in documents if body["kind"] == "NetworkPolicy"}
    sandbox = policies["sandbox"]
    assert sandbox["podSelector"] == {"matchLabels": {"shiplift.dev/sandbox": "true"}}
    dns, api_server, registry = sandbox["egress"]
    assert {item["port"] for item in dns["ports"]} == {53}
    assert api_server["to"] == [{"ipBlock": {"cidr": "10.0.0.1/32"}}]
    assert registry["to"][0]["podSelector"] == {"matchLabels": {"app.kubernetes.io/name": "mlflow"}}
    assert {"key": "shiplift.dev/sandbox", "operator": "DoesNotExist"} in policies["steps"]["podSelector"][
        "matchExpressions"
    ]


def test_without_an_mlflow_of_ours_its_objects_are_not_there() -> None:
    parsed = values.parse("mlflow: {enabled: false, uri: 'https://mlflow.example.org:8443'}")
    names = {(body["kind"], body["metadata"]["name"]) for body in manifests.documents(parsed)}
    assert not names & {("Deployment", "mlflow"), ("Service", "mlflow"), ("NetworkPolicy", "mlflow")}
    policies = [body for body in manifests.documents(parsed) if body["metadata"]["name"] == "sandbox"]
    assert {"port": 8443} in [port for rule in policies[0]["spec"]["egress"] for port in rule["ports"]]
    assert "shiplift-mlflow" not in manifests.secret_keys(parsed)


def test_an_object_store_is_reached_on_its_own_ports_alone() -> None:
    parsed = values.parse("{artifacts_uri: 's3://bucket/x', network: {store_ports: [9000]}}")
    policies = {
        body["metadata"]["name"]: body for body in manifests.documents(parsed) if body["kind"] == "NetworkPolicy"
    }
    for name in ("models", "sandbox"):
        assert {"ports": [{"port": 9000}]} in policies[name]["spec"]["egress"]
    usual = [body for body in manifests.documents(Values()) if body["metadata"]["name"] == "models"]
    assert all("9000" not in str(body) for body in usual)


def test_render_writes_one_file_a_part_and_removes_what_is_no_longer_there(tmp_path: Path) -> None:
    written = manifests.render(values.parse("gateway: {class_name: x}"), tmp_path / "out")
    assert [path.name for path in written][:2] == ["10-namespaces.yaml", "20-access.yaml"]
    assert sorted(tmp_path.joinpath("out").iterdir()) == sorted(written)
    assert [body for path in written for body in yaml.safe_load_all(path.read_text())] == manifests.documents(
        values.parse("gateway: {class_name: x}")
    )
    again = manifests.render(Values(), tmp_path / "out")
    assert {path.name for path in written} - {path.name for path in again} == {"90-serving.yaml"}
    assert sorted(tmp_path.joinpath("out").iterdir()) == sorted(again)


def test_secrets_are_in_no_file_and_how_to_create_them_is_printed() -> None:
    parsed = values.parse(EVERYTHING)
    secrets = [body for body in manifests.documents(parsed) if body["kind"] == "Secret"]
    assert [body["type"] for body in secrets] == ["kubernetes.io/service-account-token"]
    assert all("data" not in body and "stringData" not in body for body in secrets)
    text = "\n".join(manifests.left_to_do(parsed))
    for name, keys in manifests.secret_keys(parsed).items():
        assert name in text
        assert all(key in text for key in keys)


def test_the_ledger_s_secret_is_the_only_one_that_a_step_gets() -> None:
    content = json.loads(manifests.secret_keys(Values())["shiplift-ledger"]["secrets.json"]())
    assert (content["webhook"], content["mlflow"]) == ("", "")
    assert len(content["ledger"]) >= 32
