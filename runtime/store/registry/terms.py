"""The vocabulary that all clients of the registry share: its names and its model versions."""

from dataclasses import dataclass, field
from typing import Any

from shiplift.runtime.base.errors import NotAdmitted, Temporary, UsageError
from shiplift.runtime.records.request import Request

CHAMPION, CHALLENGER, PREVIOUS = "champion", "challenger", "previous"
TAG = "shiplift."
PIPELINE_TAG = f"{TAG}pipeline"  # marks a version that is a pipeline of models
SOURCE_TAG = f"{TAG}source"  # set by a push: the folder's object in git
ADOPTED_TAG = f"{TAG}adopted"  # the digest of the files of a version that was adopted from a Triton repository
MEMBER_TAG = f"{TAG}member"  # set if a version was registered because of this MODEL/VERSION
_URI = "models:/"  # MLflow's address of a registered model or a version of it
RETIRED_TAG = f"{TAG}retired"  # set if the model was retired after the version was registered: who, when and why
APPROVE_TAG, REJECT_TAG = f"{TAG}approve", f"{TAG}reject"  # set by people, about a version that waits for approval
BAKE_TAG = "bake"  # how the bake of a version ended, without `TAG`
FOLDER = "shiplift"  # below a run's artifacts: the author's data and spec, and Shiplift's records and reports


@dataclass(frozen=True, kw_only=True)
class VersionInfo:
    """A model version in the registry; times are seconds since the epoch."""

    name: str
    version: int
    source: str
    run_id: str
    created_at: float
    tags: dict[str, str] = field(default_factory=dict)
    aliases: tuple[str, ...] = ()
    description: str = ""

    @property
    def model_id(self) -> str:
        """The logged model of MLflow 3 that the version is; empty if it is none."""
        logged = self.source.removeprefix("models:/")
        return "" if logged == self.source or not logged.isascii() or not logged.replace("-", "").isalnum() else logged


def check_name(name: str) -> str:
    """The name, if it is valid for a registered model.

    Raises:
        NotAdmitted: the name is empty, too long, or has a character that MLflow does not allow.
    """
    if not name or len(name) > 256 or any(c in name for c in "/:") or not name.isprintable() or name != name.strip():
        raise NotAdmitted(
            f"{name[:80]!r} can't be a model's name: it needs 1 to 256 printable characters, without `/` and `:`",
            do="Register the model under another name.",
        )
    return name


def model_and_version(name: str) -> tuple[str, int | None]:
    """Splits `digits/3`, or MLflow's `models:/digits/3`, into a model and a version (None: the newest).

    Raises:
        UsageError: the version is not a positive number.
        NotAdmitted: the model's name is not valid.
    """
    uri = name.startswith(_URI)
    model, slash, version = name.removeprefix(_URI).rpartition("/")
    if uri and "@" in version:
        what = f"{name!r} names an alias, which may move"
        raise UsageError(what, do="Write MODEL/VERSION; `shiplift status MODEL` shows which version has the alias.")
    if uri and version == "latest":
        return check_name(model), None
    if not slash:
        return check_name(version), None
    if not (version.isascii() and version.isdecimal() and len(version) <= 10) or int(version) < 1:
        raise UsageError(f"{version!r} is not a version number", do="Write MODEL/VERSION, such as digits/3.")
    return check_name(model), int(version)


def request_of(info: VersionInfo, spec: str = "") -> Request:
    """The request to release a version, and no other that gets its number later."""
    return Request(model=info.name, version=info.version, spec=spec, registered_at=info.created_at)


def version_info(body: Any) -> VersionInfo:
    """A version from its JSON.

    Raises:
        Temporary: the JSON is malformed.
    """
    try:
        return VersionInfo(
            name=str(body["name"]),
            version=int(body["version"]),
            source=str(body.get("source", "")),
            run_id=str(body.get("run_id", "")),
            created_at=int(body.get("creation_timestamp", 0)) / 1000,
            tags={str(tag["key"]): str(tag.get("value", "")) for tag in body.get("tags", [])},
            aliases=tuple(str(alias) for alias in body.get("aliases", []) if isinstance(alias, str)),
            description=str(body.get("description") or ""),
        )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise Temporary(f"the registry sent a malformed version: {error!r}", do="Check MLFLOW_TRACKING_URI.") from error
