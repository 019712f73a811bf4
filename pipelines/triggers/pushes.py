"""Reads a push: its repository, its branch, and its first and last commit. Nothing else in it is trusted.

The settings must list the repository with the host that sent the push. They also say where to clone it from: a sender
must not choose which code runs.
"""

from collections.abc import Callable
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from shiplift.pipelines.engines.argo.workflows import Push
from shiplift.pipelines.triggers.settings import Repository

NO_COMMIT = "0" * 40
Commit = Annotated[str, Field(pattern=r"^([0-9a-f]{40}|[0-9a-f]{64})$")]
Find = Callable[[str], Repository | None]


class _Part(BaseModel):
    model_config = ConfigDict(extra="ignore")


class _GitHubRepository(_Part):
    full_name: Annotated[str, Field(max_length=200)]


class _GitHub(_Part):
    ref: str
    before: Commit
    after: Commit
    repository: _GitHubRepository

    @property
    def name(self) -> str:
        return self.repository.full_name


class _GitLabProject(_Part):
    path_with_namespace: Annotated[str, Field(max_length=200)]


class _GitLab(_Part):
    object_kind: Literal["push"]
    ref: str
    before: Commit
    after: Commit
    project: _GitLabProject

    @property
    def name(self) -> str:
        return self.project.path_with_namespace


def read_push(host: Literal["github", "gitlab"], body: bytes, find: Find) -> Push | tuple[int, str]:
    """The push in a delivery whose signature is valid, or the HTTP status and the sentence to answer with."""
    kind: type[Any] = _GitHub if host == "github" else _GitLab
    try:
        payload: _GitHub | _GitLab = kind.model_validate_json(body)
    except ValidationError:
        return 200, "ignored: not a push of commits to a branch"
    repository = find(payload.name)
    if repository is None or repository.host != host:
        return 403, "this repository is not in the list of repositories that may release models here"
    if payload.ref != f"refs/heads/{repository.branch}":
        return 200, f"ignored: only pushes to {repository.branch} release models"
    if not payload.after.strip("0"):
        return 200, "ignored: the branch was deleted"
    return Push(repository=repository.name, before=payload.before, after=payload.after)
