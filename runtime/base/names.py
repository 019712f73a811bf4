"""Registry names as names elsewhere: a Triton model, a folder, a Kubernetes object."""

import hashlib
import re
import unicodedata

_SAFE = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,47}")
_SLUG_LENGTH = 40
_WORKFLOW_LENGTH = 50  # of the 63 characters of a label's value


def serving_name(model: str) -> str:
    """The name a model is served under: its own where that is safe in URLs and paths, else a slug with a digest.

    Different models never share one: the digest is of the whole name, and a safe name never looks like a slug of
    another (those end in `-` and ten hex digits, which a safe name may not). Nor does one hold `--`, which begins what
    production and staging append to a served name.
    """
    if _SAFE.fullmatch(model) and "--" not in model and not re.search(r"-[0-9a-f]{10}$", model):
        return model
    plain = unicodedata.normalize("NFKD", model).encode("ascii", "ignore").decode().lower()
    slug = re.sub(r"[^a-z0-9]+", "-", plain).strip("-")[:_SLUG_LENGTH].strip("-") or "model"
    return f"{slug}-{hashlib.sha256(model.encode()).hexdigest()[:10]}"


def dns_name(model: str) -> str:
    """A model's name as a Kubernetes object's: an RFC 1035 label of at most 40 characters, one per served name."""
    served = serving_name(model)
    if re.fullmatch(r"[a-z]([a-z0-9-]{0,38}[a-z0-9])?", served):
        return served
    slug = re.sub(r"[^a-z0-9]+", "-", served.lower()).strip("-")[:27].strip("-")
    return f"m-{slug}-{hashlib.sha256(model.encode()).hexdigest()[:10]}"


def release_name(model: str, version: int, spec: str) -> str:
    """The one name of a release: the same model, version and spec given by hand always give the same one."""
    return f"{release_prefix(model, version)}{_release_digest(model, version, spec)}"


def release_prefix(model: str, version: int | None = None) -> str:
    """What the names of all releases of a model, or of one version of it, begin with; another model's may too."""
    slug = re.sub(r"[^a-z0-9]+", "-", serving_name(model).lower()).strip("-")
    return f"{slug}-" if version is None else f"{slug}-{version}-"


def workflow_name(model: str, version: int, spec: str) -> str:
    """The one name of a release on a cluster: a DNS label with room for what is appended to it (`-2`, `-conclude`)."""
    tail = f"-{version}-{_release_digest(model, version, spec)}"
    slug = dns_name(model)[: _WORKFLOW_LENGTH - len("release-") - len(tail)].strip("-")
    return f"release-{slug}{tail}"


def push_name(repository: str, commit: str) -> str:
    """The one name of a git push on a cluster, for repositories that differ in more than punctuation."""
    slug = re.sub(r"[^a-z0-9]+", "-", repository.lower())[:33].strip("-")
    return f"git-{slug}-{commit[:12]}"


def _release_digest(model: str, version: int, spec: str) -> str:
    return hashlib.sha256(f"{model}\n{version}\n{spec}".encode()).hexdigest()[:10]
