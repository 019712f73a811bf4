"""What an installation consists of: golden files, and what holds of every object whatever the values."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from shiplift.pipelines.installation import accounts, manifests, values
from shiplift.pipelines.installation.values import Values
from shiplift.pipelines.triggers.settings import TriggerSettings
from shiplift.runtime.base import libyaml
from shiplift.runtime.base.errors import SpecInvalid
from shiplift.runtime.records.site import ActivatorRef, Cluster, Site
from shiplift.runtime.serving.discovery import CONFIG_MAP_NAME
from shiplift.runtime.serving.kubernetes.objects.names import REGISTRY_READER
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
events: {secret: hooks, targets: [{name: ops, url: "https://events.example.org:8443/"}]}
gateway: {class_name: istio, annotations: {example.org/owner: "team: a"}}
activator: {hold_s: 90}
scoring: {replicas: 3, key_secret: scoring-key}
page: {hosts: [shiplift.example.com]}
capture: {size_gb: 50, storage_class: fast}
serving: {cpu: "1", memory_limit: 4Gi, quota: {pods: "20", requests.cpu: "16"}}
targets: [{name: fast, accelerator: cpu-vnni}]
stages: {tune: {cpu: "4"}}
network: {api_server: [10.0.0.1/32]}
"""


_DOCUMENTS: dict[str, list[dict[str, Any]]] = {}


def documents_of(parsed: Values) -> list[dict[str, Any]]:
    """The objects of an installation; they are made once, and only read."""
    key = repr(parsed)
    if key not in _DOCUMENTS:
        _DOCUMENTS[key] = manifests.documents(parsed)
    return _DOCUMENTS[key]


def text_of(parsed: Values) -> str:
    """All but the WorkflowTemplates, which have golden files of their own."""
    bodies = [body for part in manifests.PARTS if part != "workflows" for body in manifests.part_of(parsed, part)]
    return manifests.text_of(bodies)


@pytest.mark.parametrize(("name", "text"), [("default", ""), ("everything", EVERYTHING)])
def test_an_installation_is_the_golden_one(golden: Golden, name: str, text: str) -> None:
    golden(f"install.{name}.yaml", text_of(values.parse(text)))


@pytest.mark.parametrize("text", ["", "ingress: {class_name: nginx, host: models.example.org, tls_secret: t}"])
def test_only_with_an_ingress_class_may_the_operator_write_ingresses(text: str) -> None:
    parsed = values.parse(text)
    rules = [rule for body in documents_of(parsed) if body["kind"] == "Role" for rule in body["rules"]]
    assert any("ingresses" in rule["resources"] for rule in rules) == bool(text)
    cluster = parsed.site.place
    assert isinstance(cluster, Cluster)
    assert (cluster.ingress is not None) == bool(text)


def pods(parsed: Values) -> list[dict[str, Any]]:
    return [body["spec"]["template"]["spec"] for body in documents_of(parsed) if body["kind"] == "Deployment"]


@pytest.mark.parametrize("text", ["", EVERYTHING])
def test_every_pod_meets_the_restricted_standard(text: str) -> None:
    parsed = values.parse(text)
    assert len(pods(parsed)) == (8 if text else 4)
    for pod in pods(parsed):
        assert pod["securityContext"]["runAsNonRoot"]
        assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        for container in pod["containers"]:
            assert container["securityContext"] == {
                "allowPrivilegeEscalation": False,
                "readOnlyRootFilesystem": True,
                "capabilities": {"drop": ["ALL"]},
            }
            assert container["resources"]["limits"]["memory"]
    for namespace in (body for body in documents_of(parsed) if body["kind"] == "Namespace"):
        assert namespace["metadata"]["labels"]["pod-security.kubernetes.io/enforce"] == "restricted"


@pytest.mark.parametrize("text", ["", EVERYTHING])
def test_everything_carries_the_label_that_selects_it(text: str) -> None:
    documents = documents_of(values.parse(text))
    assert all(body["metadata"]["labels"][manifests.INSTALLED] == "true" for body in documents)
    names = [(body["kind"], body["metadata"].get("namespace"), body["metadata"]["name"]) for body in documents]
    assert len(set(names)) == len(names)


def test_no_role_reaches_secrets_or_the_whole_cluster() -> None:
    documents = documents_of(values.parse(EVERYTHING))
    assert not [body for body in documents if body["kind"].startswith("ClusterRole")]
    rules = [rule for body in documents if body["kind"] == "Role" for rule in body["rules"]]
    assert all("*" not in rule["verbs"] + rule["resources"] + rule["apiGroups"] for rule in rules)
    assert all("secrets" not in rule["resources"] for rule in rules)


def test_what_the_parts_are_told_can_be_read_back_and_holds_no_secret() -> None:
    parsed = values.parse(EVERYTHING)
    maps: dict[str, Any] = {
        body["metadata"]["name"]: body.get("data") for body in documents_of(parsed) if body["kind"] == "ConfigMap"
    }
    config = maps["shiplift-config"]
    assert TriggerSettings.model_validate_json(config["config.json"]) == parsed.triggers
    assert Site.model_validate_json(config["site.json"]) == parsed.site
    assert maps["shiplift-git-commits"] is None  # the reconciler's data, which `install` must not own


def test_a_pod_of_the_receiver_is_replaced_when_what_it_is_told_changes() -> None:
    def mark(text: str) -> str:
        documents = documents_of(values.parse(text))
        (receiver,) = (
            body for body in documents if (body["kind"], body["metadata"]["name"]) == ("Deployment", "receiver")
        )
        return str(receiver["spec"]["template"]["metadata"]["annotations"]["shiplift.dev/config"])

    assert mark("") == mark("") != mark("receiver: {deliveries_per_minute: 10}")


def test_pods_that_load_models_reach_the_store_and_the_api_server_alone() -> None:
    documents = documents_of(values.parse(EVERYTHING))
    policies = {body["metadata"]["name"]: body["spec"] for body in documents if body["kind"] == "NetworkPolicy"}
    sandbox = policies["sandbox"]
    assert sandbox["podSelector"] == {"matchLabels": {"shiplift.dev/sandbox": "true"}}
    dns, api_server, registry, capture = sandbox["egress"]
    assert {item["port"] for item in dns["ports"]} == {53}
    assert api_server["to"] == [{"ipBlock": {"cidr": "10.0.0.1/32"}}]
    assert registry["to"][0]["podSelector"] == {"matchLabels": {"app.kubernetes.io/name": "mlflow"}}
    assert capture["to"][0]["podSelector"] == {"matchLabels": {"app.kubernetes.io/name": "capture"}}
    assert {"key": "shiplift.dev/sandbox", "operator": "DoesNotExist"} in policies["steps"]["podSelector"][
        "matchExpressions"
    ]


def test_without_an_mlflow_of_ours_its_objects_are_not_there() -> None:
    parsed = values.parse("mlflow: {enabled: false, uri: 'https://mlflow.example.org:8443'}")
    names = {(body["kind"], body["metadata"]["name"]) for body in documents_of(parsed)}
    assert not names & {("Deployment", "mlflow"), ("Service", "mlflow"), ("NetworkPolicy", "mlflow")}
    policies = [body for body in documents_of(parsed) if body["metadata"]["name"] == "sandbox"]
    assert {"port": 8443} in [port for rule in policies[0]["spec"]["egress"] for port in rule["ports"]]
    assert "shiplift-mlflow" not in manifests.secret_keys(parsed)


def test_an_object_store_is_reached_on_its_own_ports_alone() -> None:
    parsed = values.parse("{artifacts_uri: 's3://bucket/x', network: {store_ports: [9000]}}")
    policies = {body["metadata"]["name"]: body for body in documents_of(parsed) if body["kind"] == "NetworkPolicy"}
    for name in ("models", "sandbox"):
        assert {"ports": [{"port": 9000}]} in policies[name]["spec"]["egress"]
    usual = [body for body in documents_of(Values()) if body["metadata"]["name"] == "models"]
    assert all("9000" not in str(body) for body in usual)


def test_render_writes_one_file_a_part_and_removes_what_is_no_longer_there(tmp_path: Path) -> None:
    written = manifests.render(values.parse("gateway: {class_name: x}"), tmp_path / "out")
    assert [path.name for path in written][:2] == ["010-namespaces.yaml", "020-resources.yaml"]
    assert sorted(tmp_path.joinpath("out").iterdir()) == sorted(written)
    assert [body for path in written for body in libyaml.load_all(path.read_text())] == documents_of(
        values.parse("gateway: {class_name: x}")
    )
    again = manifests.render(Values(), tmp_path / "out")
    assert {path.name for path in written} - {path.name for path in again} == {"110-serving.yaml"}
    assert sorted(tmp_path.joinpath("out").iterdir()) == sorted(again)


def test_secrets_are_in_no_file_and_how_to_create_them_is_printed() -> None:
    parsed = values.parse(EVERYTHING)
    secrets = [body for body in documents_of(parsed) if body["kind"] == "Secret"]
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


# --- who may do what -------------------------------------------------------------------------------------------------


def _deployments(parsed: Values) -> dict[str, Any]:
    return {
        body["metadata"]["name"]: body["spec"]["template"]["spec"]
        for body in documents_of(parsed)
        if body["kind"] == "Deployment"
    }


def _secrets_of(container: dict[str, Any]) -> set[str]:
    sources = [source["secretRef"]["name"] for source in container.get("envFrom", [])]
    variables = [variable.get("valueFrom", {}).get("secretKeyRef", {}) for variable in container.get("env", [])]
    return {*sources, *(variable["name"] for variable in variables if variable)}


def test_each_part_gets_the_account_that_it_needs_and_no_other() -> None:
    pods_ = _deployments(Values())
    accounts_ = {name: _secrets_of(pod["containers"][0]) - {"shiplift-artifacts"} for name, pod in pods_.items()}
    assert accounts_ == {
        "receiver": {"shiplift-registry-reader"},
        "reconciler": {"shiplift-registry-admin"},
        "operator": {"shiplift-registry-reader"},
        "mlflow": {"shiplift-mlflow"},
    }
    (server,) = pods_["mlflow"]["containers"]
    assert "--app-name=basic-auth" in server["args"]
    assert not {mount["name"] for mount in server["volumeMounts"]} & {
        "shiplift-registry-admin",
        "shiplift-registry-release",
        "shiplift-registry-reader",
    }


def test_an_account_is_a_user_name_and_a_password_of_its_own() -> None:
    made = {
        name: {key: make() for key, make in keys.items()}
        for name, keys in manifests.secret_keys(Values()).items()
        if name.startswith("shiplift-registry-")
    }
    assert {account[accounts.USERNAME] for account in made.values()} == {
        accounts.ADMIN,
        accounts.RELEASE,
        accounts.READER,
        accounts.PUSH,
    }
    passwords = {account[accounts.PASSWORD] for account in made.values()}
    assert len(passwords) == 4
    assert all(len(password) >= 32 for password in passwords)
    assert manifests.copied_secrets(Values()) == ("shiplift-registry-reader",)


def test_what_is_captured_has_secrets_of_its_own_and_pods_that_serve_get_the_one_that_only_adds() -> None:
    assert "capture" not in manifests.text_of(manifests.part_of(Values(), "capture"))
    parsed = values.parse("capture: {}")
    own = {
        "shiplift-capture-sender": "SHIPLIFT_CAPTURE_TOKEN",
        "shiplift-capture-reader": "SHIPLIFT_CAPTURE_READER",
        "shiplift-capture-hashes": "SHIPLIFT_CAPTURE_HASHES",
    }
    keys = manifests.secret_keys(parsed)
    assert {name: {key} for name, key in own.items()} == {name: set(keys[name]) for name in own}
    assert [name for name in own if name in manifests.copied_secrets(parsed)] == ["shiplift-capture-sender"]
    (container,) = _deployments(parsed)["capture"]["containers"]
    assert _secrets_of(container) == set(own)
    (role,) = [body for body in manifests.part_of(parsed, "capture") if body["kind"] == "Role"]
    assert {verb for rule in role["rules"] for verb in rule["verbs"]} == {"get", "list"}
    text = " ".join(manifests.text_of(manifests.part_of(parsed, "access")).replace("''", "'").split())
    assert "c.name == 'capture' ? ['shiplift-capture-sender'] : ['shiplift-registry-reader'" in text
    policies = {body["metadata"]["name"]: body for body in documents_of(parsed) if body["kind"] == "NetworkPolicy"}
    for name, reaches in (("models", True), ("sandbox", True), ("steps", False), ("benches", False)):
        egress = policies[name]["spec"]["egress"]
        assert any(rule.get("ports") == [{"port": 8009}] for rule in egress) is reaches


def test_the_token_of_readers_is_in_the_broker_of_the_admission_alone() -> None:
    bodies = [body for body in documents_of(values.parse("capture: {}")) if body["kind"] == "WorkflowTemplate"]
    templates = [template for body in bodies for template in body["spec"]["templates"]]
    containers = [
        (template["name"], each["name"])
        for template in templates
        for each in [*template.get("sidecars", []), {"name": "main", **template.get("container", {})}]
        if "SHIPLIFT_CAPTURE_READER" in str(each)
    ]
    assert containers
    assert {name for _, name in containers} == {"broker"}
    assert {template for template, _ in containers} == {"prepare"}  # the pod that begins with the admission
    assert "SHIPLIFT_CAPTURE" not in str(documents_of(Values()))


def _git_rules(parsed: Values) -> list[dict[str, Any]]:
    return [
        rule
        for body in documents_of(parsed)
        if body["kind"] == "Role"
        for rule in body["rules"]
        if body["metadata"]["name"] == "shiplift-reconciler" and "configmaps" in rule["resources"]
    ]


def _egress_ports(parsed: Values, name: str) -> set[int]:
    """The ports that a policy opens to every address."""
    (policy,) = (
        body["spec"]
        for body in documents_of(parsed)
        if (body["kind"], body["metadata"]["name"]) == ("NetworkPolicy", name)
    )
    return {port["port"] for rule in policy["egress"] if "to" not in rule for port in rule["ports"]} - {53}


GIT = """
repositories:
- {name: a/b, host: github, url: "https://x/a/b", credentials_secret: token}
- {name: a/c, host: gitlab, url: "ssh://git@x:2222/a/c", ssh_secret: key}
- {name: a/d, host: gitlab, url: "git://x/a/d", ssh_secret: key}
network: {api_server: [10.0.0.1/32]}
"""


def test_the_reconciler_reads_repositories_as_the_pods_of_pushes_do_and_writes_one_config_map() -> None:
    parsed = values.parse(GIT)
    pod = _deployments(parsed)["reconciler"]
    secrets_ = {volume["name"]: volume["secret"] for volume in pod["volumes"] if volume["name"].startswith("git-")}
    mounts = {mount["name"]: mount for mount in pod["containers"][0]["volumeMounts"] if mount["name"] in secrets_}
    assert {secrets_[name]["secretName"]: mount["mountPath"] for name, mount in mounts.items()} == {
        "token": "/etc/shiplift/git/token",
        "key": "/etc/shiplift/git/key",
    }
    assert all(mount["readOnly"] for mount in mounts.values())
    assert all(secret["optional"] for secret in secrets_.values())  # a missing one keeps nothing else from running
    assert _egress_ports(parsed, "reconciler") == _egress_ports(parsed, "steps") == {443, 2222, 9418}
    names = {"resourceNames": ["shiplift-git-commits"], "resources": ["configmaps"], "apiGroups": [""]}
    assert _git_rules(parsed) == [{**names, "verbs": ["get", "patch"]}]


def test_pods_that_load_models_reach_the_site_s_index_of_packages_if_there_is_one() -> None:
    closed = "network: {api_server: [10.0.0.1/32]}\n"
    outside = _egress_ports(values.parse(closed), "sandbox")
    for url, port in (("https://index.example/simple", 443), ("http://index.tools:3141/simple", 3141)):
        parsed = values.parse(f"{closed}policy: {{package_index: '{url}'}}")
        assert _egress_ports(parsed, "sandbox") == outside | {port}
        assert port not in _egress_ports(parsed, "models") | _egress_ports(parsed, "benches")
    refusing = values.parse(f"{closed}policy: {{package_index: 'https://index.example/simple', python: [refuse]}}")
    assert _egress_ports(refusing, "sandbox") == outside


def test_without_repositories_the_reconciler_has_nothing_for_git() -> None:
    parsed = values.parse("network: {api_server: [10.0.0.1/32]}")
    assert _git_rules(parsed) == []
    assert _egress_ports(parsed, "reconciler") == set()
    assert "shiplift-git-commits" not in str(documents_of(parsed))


def _matches(selector: dict[str, Any], labels: dict[str, str]) -> bool:
    """Whether a label selector, as Kubernetes defines it, selects these labels."""
    operators: dict[str, Callable[[str, list[str]], bool]] = {
        "In": lambda key, wanted: labels.get(key) in wanted,
        "Exists": lambda key, _: key in labels,
        "DoesNotExist": lambda key, _: key not in labels,
    }
    return all(labels.get(key) == value for key, value in selector.get("matchLabels", {}).items()) and all(
        operators[entry["operator"]](entry["key"], entry.get("values", []))
        for entry in selector.get("matchExpressions", [])
    )


def reaches_mlflow(parsed: Values, namespace: str, labels: dict[str, str]) -> bool:
    """Whether the policies let a pod connect to MLflow's port: the ingress of MLflow as data."""
    (policy,) = (
        body["spec"]
        for body in documents_of(parsed)
        if (body["kind"], body["metadata"]["name"]) == ("NetworkPolicy", "mlflow")
    )
    (rule,) = policy["ingress"]
    here = {"kubernetes.io/metadata.name": namespace}
    return any(
        (namespace == parsed.namespace or "namespaceSelector" in peer)
        and _matches(peer.get("namespaceSelector", {}), here)
        and _matches(peer.get("podSelector", {}), labels)
        for peer in rule["from"]
        if "ipBlock" not in peer
    )


CLIENTS = """
mlflow:
  clients:
  - {namespaceSelector: {matchLabels: {kubernetes.io/metadata.name: notebooks}}, podSelector: {matchLabels: {app: lab}}}
  - ipBlock: {cidr: 10.1.0.0/16}
"""


_WHO_REACHES_MLFLOW: list[tuple[str, dict[str, str], bool]] = [
    ("shiplift", {"app.kubernetes.io/name": "receiver"}, True),
    ("shiplift", {"app.kubernetes.io/name": "reconciler"}, True),
    ("shiplift", {"app.kubernetes.io/name": "operator"}, True),
    ("shiplift", {"workflows.argoproj.io/workflow": "release-digits-3"}, True),
    ("shiplift-serving", {"app.kubernetes.io/name": "triton"}, True),
    ("shiplift-serving", {"app.kubernetes.io/name": "triton-bench"}, True),
    ("shiplift", {"app.kubernetes.io/name": "other"}, False),
    ("shiplift-serving", {"app.kubernetes.io/name": "other"}, False),
    ("elsewhere", {"app.kubernetes.io/name": "receiver"}, False),
    ("elsewhere", {"workflows.argoproj.io/workflow": "x"}, False),
    ("elsewhere", {}, False),
    ("notebooks", {"app": "lab"}, True),
    ("notebooks", {}, False),
]


def test_only_those_that_are_named_reach_mlflow() -> None:
    named, plain = values.parse(CLIENTS), Values()
    wrong = [
        (where, labels)
        for where, labels, there in _WHO_REACHES_MLFLOW
        if reaches_mlflow(named, where, labels) is not there
        or (where == "notebooks" and reaches_mlflow(plain, where, labels))
    ]
    assert not wrong


def test_accounts_whose_token_a_template_asks_for_give_one() -> None:
    """Argo passes `automountServiceAccountToken: true` on to no pod, so the account itself has to say so."""
    bodies = documents_of(Values())
    templates = [body["spec"]["templates"] for body in bodies if body["kind"] == "WorkflowTemplate"]
    asking = {
        template["serviceAccountName"]
        for each in templates
        for template in each
        if template.get("automountServiceAccountToken")
    }
    giving = {
        body["metadata"]["name"]
        for body in bodies
        if body["kind"] == "ServiceAccount" and body["automountServiceAccountToken"]
    }
    assert {"shiplift-release", "shiplift-tune"} <= asking
    assert giving == asking | {"shiplift-receiver"}


def test_a_release_s_account_may_run_our_images_alone() -> None:
    parsed = values.parse("{serving: {images: [mirror/triton:26.07]}, images: {server: 'example.org/server:1'}}")
    text = manifests.text_of(manifests.part_of(parsed, "access"))
    assert "c.image in ['example.org/server:1', 'mirror/triton:26.07']" in text
    kinds_ = [body["kind"] for body in manifests.part_of(parsed, "access")]
    assert kinds_.count("ValidatingAdmissionPolicy") == kinds_.count("ValidatingAdmissionPolicyBinding") == 3
    without = manifests.part_of(values.parse("admission: {policies: false}"), "access")
    assert not [body for body in without if "Admission" in body["kind"]]


def test_the_activator_has_no_rights_and_comes_only_if_asked_for() -> None:
    def bodies(text: str) -> list[dict[str, Any]]:
        return list(manifests.part_of(values.parse(text), "activator"))

    assert bodies("") == bodies("gateway: {class_name: eg}") == []
    account, deployment = bodies("{gateway: {class_name: eg}, activator: {requests: 7, held_mb: 2, hold_s: 30}}")[:2]
    assert account["automountServiceAccountToken"] is False
    pod = deployment["spec"]["template"]["spec"]
    assert pod["automountServiceAccountToken"] is False
    assert pod["terminationGracePeriodSeconds"] > 30
    (container,) = pod["containers"]
    assert "env" not in container
    assert "envFrom" not in container
    assert container["args"][2:] == ["--requests", "7", "--bytes", "2097152", "--seconds", "30.0"]
    names = {
        subject["name"]
        for body in documents_of(values.parse(EVERYTHING))
        if "subjects" in body
        for subject in body["subjects"]
    }
    assert account["metadata"]["name"] not in names


def test_the_activator_needs_a_gateway() -> None:
    with pytest.raises(SpecInvalid, match="`activator` needs `gateway`"):
        values.parse("activator: {}")
    cluster = values.parse("{gateway: {class_name: eg}, activator: {hold_s: 30}}").site.place
    assert isinstance(cluster, Cluster)
    assert cluster.activator == ActivatorRef(hold_s=30)


def test_the_scoring_server_has_no_rights_and_comes_only_if_asked_for() -> None:
    def bodies(text: str) -> list[Any]:
        return list(manifests.part_of(values.parse(text), "scoring"))

    assert bodies("") == []
    account, deployment, *others = bodies("scoring: {replicas: 1, key_secret: keys}")
    assert account["automountServiceAccountToken"] is False
    pod = deployment["spec"]["template"]["spec"]
    assert pod["automountServiceAccountToken"] is False
    assert pod["volumes"][0]["configMap"] == {"name": CONFIG_MAP_NAME, "optional": True}
    (variable,) = pod["containers"][0]["env"]
    assert variable["valueFrom"] == {"secretKeyRef": {"name": "keys", "key": "key"}}
    assert [body["kind"] for body in others] == ["PodDisruptionBudget", "Service"]
    assert bodies("{gateway: {class_name: eg}, scoring: {}}")[-1]["kind"] == "HTTPRoute"


def test_the_page_may_only_read_and_answers_under_its_own_names() -> None:
    def bodies(text: str) -> list[Any]:
        return list(manifests.part_of(values.parse(text), "page"))

    assert bodies("") == []
    found = bodies("{namespace: ml, page: {hosts: [shiplift.example.com]}}")
    verbs = {verb for body in found if body["kind"] == "Role" for rule in body["rules"] for verb in rule["verbs"]}
    assert verbs == {"get", "list", "watch"}
    (pod,) = (body["spec"]["template"]["spec"] for body in found if body["kind"] == "Deployment")
    (container,) = pod["containers"]
    arguments = container["args"]
    names = [arguments[at + 1] for at, word in enumerate(arguments) if word == "--name"]
    assert names == ["page", "page.ml", "page.ml.svc", "page.ml.svc.cluster.local", "shiplift.example.com"]
    assert container["envFrom"] == [{"secretRef": {"name": REGISTRY_READER, "optional": False}}]
    assert "env" not in container  # no token: nobody acts on it
