"""Every object of Shiplift on a cluster, rendered from values.

`install` applies these objects, and `render` writes the same objects to files for GitOps. Secrets with content are not
included: they are created once, on the cluster. All objects carry a label that selects them.
"""

import hashlib
import json
import secrets
from collections.abc import Callable, Iterator
from functools import cache
from importlib.resources import files
from pathlib import Path
from urllib.parse import urlsplit

import yaml
from jinja2 import Environment, FunctionLoader, StrictUndefined

from shiplift.pipelines.engines.argo import layout
from shiplift.pipelines.engines.argo.workflows import CONCLUDE_TEMPLATE, PUSH_TEMPLATE, RELEASE_TEMPLATE
from shiplift.pipelines.installation import accounts, authentication, webhook_secrets
from shiplift.pipelines.installation.values import (
    CAPTURE_PORT,
    EVENTS,
    GATEWAY,
    GIT,
    MLFLOW_PORT,
    OPERATOR_PORT,
    PACKAGES_PORT,
    PAGE_PORT,
    PUBLISHED,
    SCORING_PORT,
    WEBHOOKS,
    Values,
)
from shiplift.pipelines.offline import PREDICT
from shiplift.pipelines.release import SINGLE
from shiplift.runtime.base import libyaml
from shiplift.runtime.capture.parts import HASHES, READER, SENDER
from shiplift.runtime.serving.discovery import CONFIG_MAP_NAME
from shiplift.runtime.serving.kubernetes.connection import Object
from shiplift.runtime.serving.kubernetes.objects.activator import ACTIVATOR, ADMIN, HEADLESS
from shiplift.runtime.serving.kubernetes.objects.bench import METER
from shiplift.runtime.serving.kubernetes.objects.names import (
    CAPTURE_SENDER,
    GRPC,
    HTTP,
    LABEL,
    REGISTRY_READER,
    USER,
)
from shiplift.runtime.serving.operator.resources import Activation, ConditionType, Reason

# In the order of their dependencies. `workflows` comes from `pipelines.engines.argo.templates`, the rest from jinja2.
PARTS = (
    "namespaces",
    "resources",
    "access",
    "configuration",
    "network",
    "mlflow",
    "workflows",
    "receiver",
    "operator",
    "reconciler",
    "serving",
    "activator",
    "scoring",
    "page",
    "capture",
)
INSTALLED, INSTALLATION = f"{LABEL}installed", f"{LABEL}installation"
_WEBHOOK_SECRET, _MLFLOW_SECRET = "shiplift-webhooks", "shiplift-mlflow"
_ACCOUNTS = {
    layout.REGISTRY_ADMIN: accounts.ADMIN,
    layout.REGISTRY_RELEASE: accounts.RELEASE,
    REGISTRY_READER: accounts.READER,
    layout.REGISTRY_PUSH: accounts.PUSH,
}


def documents(values: Values) -> list[Object]:
    """Every object except Secrets with content, in the order in which to apply them."""
    return [body for part in PARTS for body in part_of(values, part)]


def part_of(values: Values, part: str) -> list[Object]:
    """The objects of one of `PARTS`."""
    texts = _workflows(values) if part == "workflows" else [_rendered(values, part)]
    return [labelled(body) for text in texts for body in libyaml.load_all(text) if body]


def render(values: Values, folder: Path) -> list[Path]:
    """Writes the objects as YAML files into `folder`, for GitOps: one file per part. Apply them in order of file name.

    Raises:
        UsageError: the folder can't be written to.
    """
    folder.mkdir(parents=True, exist_ok=True)
    written = []
    for number, part in enumerate(PARTS, start=1):
        file = folder / f"{number * 10:03}-{part}.yaml"
        bodies = part_of(values, part)
        if bodies:
            file.write_text(text_of(bodies))
            written.append(file)
        else:
            file.unlink(missing_ok=True)
    return written


def text_of(bodies: list[Object]) -> str:
    """Objects as YAML documents."""
    return libyaml.dump_all(bodies, sort_keys=False, explicit_start=True, width=120)


def left_to_do(values: Values) -> Iterator[str]:
    """What is left to do after `render`, as sentences: the Secrets, and settings that depend on the cluster."""
    yield f"The files contain no Secrets. Create these in namespace {values.namespace}, by hand or from your vault:"
    for name, keys in secret_keys(values).items():
        contents = "; ".join(f"{key} ({_CONTENT.get(key) or make()})" for key, make in keys.items())
        copy = f", with a copy in {values.serving_namespace}" if name in copied_secrets(values) else ""
        yield f"  {name}{copy}: {contents}"
    if values.network.policies and not values.network.api_server:
        yield "Set network.api_server: without it, pods that load models may reach ports 443 and 6443 anywhere."


def _workflows(values: Values) -> list[str]:
    from shiplift.pipelines.engines.argo.templates import templates  # noqa: PLC0415 - Hera takes a second

    return templates(values.template_settings)


def _rendered(values: Values, part: str) -> str:
    return _environment().get_template(f"{part}.yaml.j2").render(_context(values))


def _template(name: str) -> str:
    return files("shiplift.templates").joinpath("kubernetes", name).read_text()


@cache
def _environment() -> Environment:
    environment = Environment(  # noqa: S701 - YAML, not HTML; every text is quoted with `q`
        loader=FunctionLoader(_template), undefined=StrictUndefined, keep_trailing_newline=True
    )
    environment.filters["q"] = _quoted
    return environment


def _quoted(value: str | dict[str, str]) -> str:
    """A text, or a mapping of texts, as a line of quoted YAML, so that a text can't inject YAML."""
    return yaml.dump(
        dict(value) if isinstance(value, dict) else str(value),
        Dumper=_Dumper,
        default_style='"',
        default_flow_style=True,
        width=10**9,
    ).strip()


class _Dumper(libyaml.Dumper):  # type: ignore[misc] # one of two
    """A dumper with PyYAML's representer of strings: Hera replaces that of safe dumpers in the whole process."""


_Dumper.add_representer(str, yaml.representer.SafeRepresenter.represent_str)


def _context(values: Values) -> dict[str, object]:
    site = values.site.model_dump_json()
    settings = f"{values.triggers.model_dump_json()}{site}"
    return {
        "values": values,
        "accounts": {
            "step": layout.STEP,
            "release": layout.RELEASER,
            "executor": layout.EXECUTOR,
            "receiver": layout.RECEIVER,
            "reconciler": "shiplift-reconciler",
            "tune": layout.TUNER,
            "mlflow": "shiplift-mlflow",
            "operator": layout.OPERATOR,
        },
        "names": {
            "config": layout.CONFIG_MAP,
            "limits": layout.LIMITS,
            "targets": layout.TARGETS,
            "webhooks": _WEBHOOK_SECRET,
            "mlflow": _MLFLOW_SECRET,
            "artifacts": layout.ARTIFACTS_SECRET,
            "commits": layout.GIT_COMMITS,
            "events": layout.EVENTS,
            "gateway": GATEWAY,
            "published": CONFIG_MAP_NAME,
            "capture_reader": layout.CAPTURE_READER,
            "capture_hashes": layout.CAPTURE_HASHES,
            "capture_sender": CAPTURE_SENDER,
        },
        "registry": {
            "admin": accounts.ADMIN,
            "accounts": accounts.__name__,
            "secrets": sorted(_ACCOUNTS),
            "authorization": f"{authentication.__name__}:{authentication.authenticate.__name__}",
            "as_admin": layout.REGISTRY_ADMIN,
            "as_reader": REGISTRY_READER,
            "webhook_secrets": webhook_secrets.__name__,
        },
        "paths": {
            "config": f"{layout.CONFIG}/config",
            "webhooks": WEBHOOKS,
            "registry": f"{layout.CONFIG}/registry",
            "accounts": f"{layout.CONFIG}/accounts",
            "git": GIT,
            "events": EVENTS,
            "published": PUBLISHED,
        },
        "images": list(dict.fromkeys(_serving_images(values))),
        "workflow_templates": [
            RELEASE_TEMPLATE,
            PUSH_TEMPLATE,
            CONCLUDE_TEMPLATE,
            PREDICT.name,
            *(stage.name for stage in SINGLE),
        ],
        "user": USER,
        "port": MLFLOW_PORT,
        "meter": METER,
        "allowed_hosts": list(_hosts(values)),
        "outside": sorted(_outside(values)),
        "git_ports": sorted(_git_ports(values)),
        "index_ports": sorted(_index_ports(values)),
        "checksum": _checksum(settings),
        "site_checksum": _checksum(site),
        "operator_port": OPERATOR_PORT,
        "packages_port": PACKAGES_PORT,
        "scoring_port": SCORING_PORT,
        "page_port": PAGE_PORT,
        "capture_port": CAPTURE_PORT,
        "page_names": list(_page_names(values)),
        "activator": {"name": ACTIVATOR, "headless": HEADLESS, "http": HTTP, "grpc": GRPC, "admin": ADMIN},
        "condition_types": [str(kind) for kind in ConditionType],
        "reasons": [str(reason) for reason in Reason],
        "activations": [str(activation) for activation in Activation],
        "catalogue": _catalogue(values),
    }


def _checksum(settings: str) -> str:
    return hashlib.sha256(settings.encode()).hexdigest()[:16]


def _catalogue(values: Values) -> str:
    """The targets in the format that `runtime.targets` reads."""
    targets = [
        target.model_dump(mode="json", exclude_defaults=True) | {"name": target.name} for target in values.targets
    ]
    return yaml.safe_dump({"targets": targets}, sort_keys=False)


def _serving_images(values: Values) -> Iterator[str]:
    """The images that may run in the serving namespace."""
    yield values.images.server
    yield from (target.image for target in values.targets if target.image)
    yield from values.serving.images


def _hosts(values: Values) -> Iterator[str]:
    """The Host headers that MLflow accepts: its Service's names, addresses (port forwards, probes), the user's own."""
    for name in ("mlflow", f"mlflow.{values.namespace}", f"mlflow.{values.namespace}.svc"):
        yield from (name, f"{name}:*")
    yield f"mlflow.{values.namespace}.svc.*"
    yield from ("localhost", "localhost:*", "127.0.0.1:*", "10.*", "172.*", "192.168.*", "[*]:*")
    for host in values.mlflow.allowed_hosts:
        yield from (host, f"{host}:*")


def _page_names(values: Values) -> Iterator[str]:
    """The names under which the live page answers: those of its Service, and the site's own."""
    name = f"page.{values.namespace}"
    yield from ("page", name, f"{name}.svc", f"{name}.svc.cluster.local")
    yield from values.page.names if values.page else ()


def _outside(values: Values) -> set[int]:
    """The ports of an external registry and artifact store."""
    ports: set[int] = set()
    for uri in filter(None, (values.mlflow.uri, values.artifacts_uri)):
        parts = urlsplit(uri)
        if parts.port:
            ports.add(parts.port)
        elif parts.scheme in ("http", "https"):
            ports.add(80 if parts.scheme == "http" else 443)
        else:
            ports.update(values.network.store_ports)
    return ports


_GIT_PORTS = {"https": (443,), "http": (80, 443), "ssh": (22,), "git": (9418,)}  # http may redirect to https


def _git_ports(values: Values) -> set[int]:
    """The ports at which the repositories are reached."""
    urls = [urlsplit(repository.url) for repository in values.repositories]
    return {port for url in urls for port in ((url.port,) if url.port else _GIT_PORTS.get(url.scheme, ()))}


def _index_ports(values: Values) -> set[int]:
    """The port of the package index for Python models, if the site accepts such models."""
    index = urlsplit(values.policy.package_index)
    if not index.hostname or "sandbox" not in values.policy.python:
        return set()
    return {index.port or (80 if index.scheme == "http" else 443)}


def labelled(body: Object) -> Object:
    """An object with the labels that mark it as part of an installation."""
    labels = {"app.kubernetes.io/part-of": "shiplift", "app.kubernetes.io/managed-by": "shiplift", INSTALLED: "true"}
    meta = body["metadata"]
    return {**body, "metadata": {**meta, "labels": {**labels, **(meta.get("labels") or {})}}}


# --- secrets --------------------------------------------------------------------------------------------------------


_CONTENT = {
    "secrets.json": '{"webhook": "", "ledger": "32 or more random characters", "mlflow": ""}',
    "mlflow": "32 or more random characters",
    "github": "the secret of the webhook on GitHub",
    "gitlab": "the secret token of the webhook on GitLab",
    "encryption-key": "a Fernet key: 32 random bytes in URL-safe base64",
    "session-key": "32 or more random characters",
    accounts.PASSWORD: "32 or more random characters",
    **dict.fromkeys((SENDER, READER, HASHES), "32 or more random characters"),
}


def secret_keys(values: Values) -> dict[str, dict[str, Callable[[], str]]]:
    """The keys of each Secret, by the Secret's name, each with a function that makes its value."""
    hosts = ["mlflow", *sorted({repository.host for repository in values.repositories})]
    keys = {
        layout.LEDGER_SECRET: {"secrets.json": _ledger},
        _WEBHOOK_SECRET: dict.fromkeys(hosts, _token),
    }
    if values.capture:
        keys |= {
            CAPTURE_SENDER: {SENDER: _token},
            layout.CAPTURE_READER: {READER: _token},
            layout.CAPTURE_HASHES: {HASHES: _token},
        }
    if not values.mlflow.enabled:
        return keys
    keys[_MLFLOW_SECRET] = {"encryption-key": _fernet, "session-key": lambda: secrets.token_urlsafe(32)}
    return keys | {secret: _account(name) for secret, name in _ACCOUNTS.items()}


def copied_secrets(values: Values) -> tuple[str, ...]:
    """The Secrets that are copied to the serving namespace, for the pods that serve."""
    return (
        *((REGISTRY_READER,) if values.mlflow.enabled else ()),
        *((CAPTURE_SENDER,) if values.capture else ()),
    )


def _token() -> str:
    return secrets.token_urlsafe(32)


def _account(name: str) -> dict[str, Callable[[], str]]:
    return {accounts.USERNAME: lambda: name, accounts.PASSWORD: lambda: secrets.token_urlsafe(32)}


def _ledger() -> str:
    """The content that `runtime.base.secrets` reads. A pod gets only the key that signs records."""
    return json.dumps({"webhook": "", "ledger": secrets.token_urlsafe(32), "mlflow": ""})


def _fernet() -> str:
    from cryptography.fernet import Fernet  # noqa: PLC0415 - once per installation

    return Fernet.generate_key().decode()
