"""Names derived from registry names: for a Triton model, a folder, a Kubernetes object."""

import hashlib
import re
import unicodedata
from functools import lru_cache

TENSORS = "--tensors"  # the suffix of the graph behind a model that takes text or images
_SAFE = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,47}")
_SLUG_LENGTH = 40
_WORKFLOW_LENGTH = 50  # a label's value has room for 63 characters


@lru_cache(1024)
def serving_name(model: str) -> str:
    """The name under which a model is served: its own if that is safe in URLs and paths, else a slug with a digest.

    No two models share a name: the digest covers the whole name, and a safe name never looks like a slug (slugs end in
    `-` and ten hex digits, safe names may not). Neither contains `--`, which begins the suffixes that production and
    staging append.
    """
    if _SAFE.fullmatch(model) and "--" not in model and not re.search(r"-[0-9a-f]{10}$", model):
        return model
    plain = unicodedata.normalize("NFKD", model).encode("ascii", "ignore").decode().lower()
    slug = re.sub(r"[^a-z0-9]+", "-", plain).strip("-")[:_SLUG_LENGTH].strip("-") or "model"
    return f"{slug}-{hashlib.sha256(model.encode()).hexdigest()[:10]}"


def name_endings(*, tensors: bool) -> tuple[str, ...]:
    """The suffixes of the models that a package serves, after the name under which it is served."""
    return ("", TENSORS) if tensors else ("",)


@lru_cache(1024)
def dns_name(model: str) -> str:
    """A Kubernetes object name for a model: an RFC 1035 label of at most 40 characters, unique per served name."""
    served = serving_name(model)
    if re.fullmatch(r"[a-z]([a-z0-9-]{0,38}[a-z0-9])?", served):
        return served
    slug = re.sub(r"[^a-z0-9]+", "-", served.lower()).strip("-")[:27].strip("-")
    return f"m-{slug}-{hashlib.sha256(model.encode()).hexdigest()[:10]}"


def release_name(model: str, version: int, spec: str, registered_at: float = 0.0) -> str:
    """The name of a release: always the same for a model, a version and the spec passed by the user.

    With `registered_at`, it is the name for a version that has the number of one that was released and deleted before.
    """
    return f"{release_prefix(model, version)}{_release_digest(model, version, spec, registered_at)}"


def release_prefix(model: str, version: int | None = None) -> str:
    """The prefix of all release names of a model, or of one version. Other models' names may start with it too."""
    slug = re.sub(r"[^a-z0-9]+", "-", serving_name(model).lower()).strip("-")
    return f"{slug}-" if version is None else f"{slug}-{version}-"


def workflow_name(model: str, version: int, spec: str, registered_at: float = 0.0) -> str:
    """The name of a release on a cluster: a DNS label with room for suffixes (`-2`, `-conclude`).

    `registered_at` is as for `release_name`.
    """
    suffix = f"-{version}-{_release_digest(model, version, spec, registered_at)}"
    slug = dns_name(model)[: _WORKFLOW_LENGTH - len("release-") - len(suffix)].strip("-")
    return f"release-{slug}{suffix}"


def repository_slug(repository: str) -> str:
    """A repository's name as part of names on a cluster. Only repositories that differ in punctuation share one."""
    return re.sub(r"[^a-z0-9]+", "-", repository.lower())[:33].strip("-")


def push_name(repository: str, before: str, after: str) -> str:
    """The name of a git push on a cluster: always the same for a repository and the commits before and after."""
    return f"git-{repository_slug(repository)}-{after[:12]}-{before[:8]}"


def _release_digest(model: str, version: int, spec: str, registered_at: float) -> str:
    registered = f"{registered_at:.3f}\n" if registered_at else ""
    return hashlib.sha256(f"{registered}{model}\n{version}\n{spec}".encode()).hexdigest()[:10]


def bracketed(address: str) -> str:
    """An IP address in the form for a URL or before a port: IPv6 in brackets."""
    return f"[{address}]" if ":" in address else address
