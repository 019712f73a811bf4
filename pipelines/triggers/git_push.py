"""Releases what a push changed in a repository of release specs and services. Runs in a pod of the Workflow `git-push`.

    python -m shiplift.pipelines.triggers.git_push

Each `releases/*.yaml` that the push added or changed releases the newest version of the model it names, with that spec
and the commit as lineage. If a later commit changed the spec again, that commit's own run releases it, so a push that
arrives late or twice never restores an old spec. Each state of a folder `services/NAME` is registered once, as it is at
the branch's tip (`services.py`). A bad file doesn't stop the release of the others.
"""

import argparse
import contextlib
import json
import re
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from shiplift.pipelines.engines.answers import Accepted
from shiplift.pipelines.triggers.pushes import NO_COMMIT
from shiplift.pipelines.triggers.services import MAX_FILE_BYTES, Newest, Registered, register_services
from shiplift.pipelines.triggers.settings import Repository, TriggerSettings, load
from shiplift.runtime.base.errors import NotFound, ShipliftError, SpecInvalid, Temporary, UsageError
from shiplift.runtime.base.git import Commits, TreeEntry
from shiplift.runtime.records.request import Request, Trigger
from shiplift.runtime.spec.document import MAX_SPEC_BYTES, parse
from shiplift.runtime.store.registry.rest import RestRegistry
from shiplift.runtime.store.registry.terms import check_name, request_of

FOLDER = "releases"
MAX_SPECS = 500
_COMMIT = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")
_SPEC = re.compile(rf"{FOLDER}/[^/]+\.ya?ml")

Accept = Callable[[Request, Trigger], Accepted]
LogEvent = Callable[..., object]


@dataclass(frozen=True, kw_only=True)
class Spec:
    """A release spec in a repository, and the model it names."""

    path: str
    model: str
    text: str


def changed_specs(commits: Commits, branch: str, before: str, after: str, log: LogEvent) -> list[TreeEntry]:
    """The specs that a push added or changed, and that are still the same at the tip of the branch.

    Raises:
        NotFound: the repository does not have the branch or the commit.
        SpecInvalid: there are more than `MAX_SPECS`.
        Temporary: the repository does not respond.
    """
    tip = commits.fetch_branch(branch)
    commits.fetch_commit(after, branch)
    entries = [entry for entry in commits.entries(after, FOLDER) if _SPEC.fullmatch(entry.path)]
    if len(entries) > MAX_SPECS:
        raise SpecInvalid(f"{FOLDER}/ has {len(entries)} specs, the limit is {MAX_SPECS}", do="Split the repository.")
    changed = _changed(commits, branch, before, after)
    current = {entry.path: entry.blob for entry in commits.entries(tip, FOLDER)}
    specs: list[TreeEntry] = []
    for entry in entries:
        if changed is not None and entry.path not in changed:
            continue
        if current.get(entry.path) == entry.blob:
            specs.append(entry)
        else:
            log("superseded", file=ascii(entry.path), by=tip)
    return specs


def _changed(commits: Commits, branch: str, before: str, after: str) -> set[str] | None:
    """The paths that changed; None if unknown, because there is no earlier commit, or it no longer exists.

    A new branch has none: git hosts then send a commit of zeros. A force push can remove it from the repository.
    """
    if not before.strip("0"):
        return None
    try:
        commits.fetch_commit(before, branch)
        return commits.changed(before, after, FOLDER)
    except NotFound:
        return None


def read_spec(commits: Commits, entry: TreeEntry) -> Spec:
    """Reads a spec.

    Raises:
        SpecInvalid: it is not a plain file, too large, not a valid spec, or names no model.
    """
    path = ascii(entry.path)[1:-1]
    if entry.kind != "file":
        raise SpecInvalid(f"{path} is a {entry.kind}", do="Commit a plain file.")
    if entry.size_bytes > MAX_SPEC_BYTES:
        raise SpecInvalid(f"{path} has {entry.size_bytes} bytes, the limit is {MAX_SPEC_BYTES}", do="Shorten it.")
    try:
        text = commits.read(entry).decode()
        model = parse(text).model
    except UnicodeDecodeError as error:
        raise SpecInvalid(f"{path} is not UTF-8", do="Save it as UTF-8.") from error
    except SpecInvalid as error:
        raise SpecInvalid(f"{path}: {error.what}", do=error.do) from error
    if not model:
        raise SpecInvalid(f"{path} names no model", do="Write `model: NAME` in it.")
    try:
        return Spec(path=path, model=check_name(model), text=text)
    except ShipliftError as error:
        raise SpecInvalid(f"{path}: {error.what}", do="Fix `model`.") from error


def release(
    specs: Iterator[Spec | ShipliftError],
    commit: str,
    newest: Newest,
    accept: Accept,
    log: LogEvent,
    *,
    repository: str = "",
) -> ShipliftError | None:
    """Accepts a release for each spec of a commit; returns all errors as one (`_as_one`)."""
    errors: list[ShipliftError] = []
    paths: dict[str, str] = {}
    for spec in specs:
        try:
            if isinstance(spec, ShipliftError):
                raise spec
            other = paths.setdefault(spec.model, spec.path)
            if other != spec.path:
                raise SpecInvalid(f"{other} and {spec.path} both name {spec.model!r}", do="Keep one of them.")
            request = request_of(newest(spec.model), spec.text)
            trigger = Trigger(kind="git", commit=commit, repository=repository, requested_at=time.time())
            accepted = accept(request, trigger)
        except ShipliftError as error:
            errors.append(error)
            log("not released", error=error.title, what=error.what, do=error.do)
        else:
            event = "release started" if accepted.created else "already there"
            log(event, file=spec.path, model=spec.model, version=request.version, release=accepted.name)
    return _as_one(errors)


def _as_one(errors: Sequence[ShipliftError]) -> ShipliftError | None:
    """All errors as one, which is `Temporary` if one of them is."""
    if len(errors) < 2:
        return errors[0] if errors else None
    error_class = next((type(error) for error in errors if isinstance(error, Temporary)), type(errors[0]))
    return error_class("; ".join(error.what for error in errors), do="See the pod's log for each.")


def specs_of(commits: Commits, entries: list[TreeEntry]) -> Iterator[Spec | ShipliftError]:
    """Each spec, or the error in it."""
    for entry in entries:
        try:
            yield read_spec(commits, entry)
        except ShipliftError as error:
            yield error


def run(
    repository: Repository, settings: TriggerSettings, before: str, after: str, accept: Accept, log: LogEvent
) -> None:
    """Releases what one push changed.

    Raises:
        SpecInvalid, NotAdmitted: a spec or a service is wrong; the others were released.
        NotFound: the commit, or the model of a spec, does not exist; the others were released.
        Temporary: the repository, the registry or the cluster does not respond; running it again is harmless.
    """
    registry = RestRegistry(settings.registry_uri)
    with tempfile.TemporaryDirectory(prefix="shiplift-git-") as folder:
        commits = Commits(Path(folder), repository.origin(settings.git_timeout_s), largest_bytes=MAX_FILE_BYTES)
        entries = changed_specs(commits, repository.branch, before, after, log)
        if not entries:
            log("no release spec changed", before=before, after=after)
        error = release(specs_of(commits, entries), after, registry.newest_of, accept, log, repository=repository.name)
        services = _registered(commits, commits.fetch_branch(repository.branch), registry, log)
    if error := _as_one([*([error] if error else []), *services.errors.values()]):
        raise error


def _registered(commits: Commits, tip: str, registry: RestRegistry, log: LogEvent) -> Registered:
    def register(name: str, files: Mapping[str, bytes], tags: Mapping[str, str]) -> int:
        return registry.register(name, files, tags).version

    services = register_services(commits, tip, registry.newest_of, register)
    for name, version in services.versions.items():
        log("service registered", model=name, version=version, commit=tip)
    for name, error in services.errors.items():
        log("service not registered", model=name, error=error.title, what=error.what, do=error.do)
    return services


def _log(event: str, **fields: object) -> None:
    print(json.dumps({"event": event, **fields}), flush=True)


def main() -> None:
    """Releases what one push to a listed repository changed."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--config", type=Path, required=True, help="the settings of this cluster, as JSON")
    parser.add_argument("--repository", required=True, help="the repository's name in the settings")
    parser.add_argument("--before", default=NO_COMMIT, help="the commit before the push")
    parser.add_argument("--after", required=True, help="the commit pushed")
    arguments = parser.parse_args()
    from shiplift.pipelines.engines.argo.releases import connect  # noqa: PLC0415 - the Kubernetes client is optional

    settings = load(arguments.config)
    repository = settings.repository(arguments.repository)
    if repository is None:
        raise UsageError(
            f"{arguments.repository!r} is not listed in {arguments.config.name}", do="Add it, or fix the name."
        )
    for commit in (arguments.before, arguments.after):
        if not _COMMIT.fullmatch(commit):
            raise UsageError(f"{commit[:80]!r} is not a commit hash", do="Pass 40 or 64 hexadecimal digits.")
    releases = connect(settings.namespace, RestRegistry(settings.registry_uri))
    run(repository, settings, arguments.before, arguments.after, releases.accept, _log)


if __name__ == "__main__":
    try:
        main()
    except ShipliftError as error:
        print(f"{error.title}: {error}", file=sys.stderr)
        with contextlib.suppress(OSError):  # outside a pod it does not exist
            Path("/dev/termination-log").write_bytes(str(error).encode()[:4000])
        raise SystemExit(error.exit_code) from error
