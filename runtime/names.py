"""Registry names as names elsewhere: a Triton model, a folder, a Kubernetes object."""

import hashlib
import re
import unicodedata

_SAFE = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,47}")
_SLUG_LENGTH = 40


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


def release_name(model: str, version: int, spec: str) -> str:
    """The one name of a release: the same model, version and spec given by hand always give the same one."""
    digest = hashlib.sha256(f"{model}\n{version}\n{spec}".encode()).hexdigest()[:10]
    slug = re.sub(r"[^a-z0-9]+", "-", serving_name(model).lower()).strip("-")
    return f"{slug}-{version}-{digest}"
