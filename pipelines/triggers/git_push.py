"""What a push to a repository of release specs starts, in a pod of `git-push`.

    python -m shiplift.pipelines.triggers.git_push

Each `releases/*.yaml` that the push added or changed releases the newest version of the model it names, with that spec
and the commit as lineage. A spec that a later commit changed again is left to that commit's own run: an old push that
comes late, or once more, never brings back what it says. One bad file does not keep the others from being released.
"""

import argparse
import contextlib
import json
import re
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from shiplift.pipelines.engines.answers import Accepted
from shiplift.pipelines.triggers.pushes import NO_COMMIT
from shiplift.pipelines.triggers.settings import Repository, TriggerSettings, load
from shiplift.runtime.base.errors import NotFound, ShipliftError, SpecInvalid, Temporary, UsageError
from shiplift.runtime.base.git import Commits, Entry, Origin
from shiplift.runtime.records.request import Request, Trigger
from shiplift.runtime.spec.document import MAX_SPEC_BYTES, parse
from shiplift.runtime.store.registry import check_name
from shiplift.runtime.store.registry_rest import RestRegistry

FOLDER = "releases"
MAX_SPECS = 500
_COMMIT = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")
_SPEC = re.compile(rf"{FOLDER}/[^/]+\.ya?ml")

Accept = Callable[[Request, Trigger], Accepted]
Newest = Callable[[str], int]
Tell = Callable[..., object]


@dataclass(frozen=True, kw_only=True)
class Spec:
    """A release spec in a repository, and the model it is for."""

    path: str
    model: str
    text: str


def changed_specs(commits: Commits, branch: str, before: str, after: str, tell: Tell) -> list[Entry]:
    """The specs that a push added or changed, and that still say the same at the end of the branch.

    Raises:
        NotFound: the repository lacks the branch or the commit.
        SpecInvalid: there are more than `MAX_SPECS`.
        Temporary: the repository does not answer.
    """
    last = commits.fetch_branch(branch)
    commits.fetch_commit(after, branch)
    entries = [entry for entry in commits.entries(after, FOLDER) if _SPEC.fullmatch(entry.path)]
    if len(entries) > MAX_SPECS:
        raise SpecInvalid(f"{FOLDER}/ has {len(entries)} specs, the limit is {MAX_SPECS}", do="Split the repository.")
    changed = _changed(commits, branch, before, after)
    now = {entry.path: entry.blob for entry in commits.entries(last, FOLDER)}
    found: list[Entry] = []
    for entry in entries:
        if changed is not None and entry.path not in changed:
            continue
        if now.get(entry.path) == entry.blob:
            found.append(entry)
        else:
            tell("superseded", file=ascii(entry.path), by=last)
    return found


def _changed(commits: Commits, branch: str, before: str, after: str) -> set[str] | None:
    """The paths that changed; None where nobody knows, since what was before is not there any more."""
    if not before.strip("0"):
        return None
    try:
        commits.fetch_commit(before, branch)
        return commits.changed(before, after, FOLDER)
    except NotFound:
        return None


def read_spec(commits: Commits, entry: Entry) -> Spec:
    """A spec, if it is one.

    Raises:
        SpecInvalid: it is no plain file, too large, no valid spec, or names no model.
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
        raise SpecInvalid(f"{path}: {error.what}", do="Mend `model`.") from error


def release(
    specs: Iterator[Spec | ShipliftError], commit: str, newest: Newest, accept: Accept, tell: Tell
) -> ShipliftError | None:
    """Accepts a release for each spec; gives the error to end with: all of them, as one that may pass if one may."""
    errors: list[ShipliftError] = []
    seen: dict[str, str] = {}
    for spec in specs:
        try:
            if isinstance(spec, ShipliftError):
                raise spec
            other = seen.setdefault(spec.model, spec.path)
            if other != spec.path:
                raise SpecInvalid(f"{other} and {spec.path} both name {spec.model!r}", do="Keep one of them.")
            request = Request(model=spec.model, version=newest(spec.model), spec=spec.text)
            accepted = accept(request, Trigger(kind="git", commit=commit, requested_at=time.time()))
        except ShipliftError as error:
            errors.append(error)
            tell("not released", error=error.title, what=error.what, do=error.do)
        else:
            said = "release started" if accepted.created else "already there"
            tell(said, file=spec.path, model=spec.model, version=request.version, release=accepted.name)
    if len(errors) < 2:
        return errors[0] if errors else None
    kind = next((type(error) for error in errors if isinstance(error, Temporary)), type(errors[0]))
    return kind("; ".join(error.what for error in errors), do="See the pod's log for each.")


def specs_of(commits: Commits, entries: list[Entry]) -> Iterator[Spec | ShipliftError]:
    """Each spec, or what is wrong with it."""
    for entry in entries:
        try:
            yield read_spec(commits, entry)
        except ShipliftError as error:
            yield error


def run(repository: Repository, settings: TriggerSettings, before: str, after: str, accept: Accept, tell: Tell) -> None:
    """Looks into one push and releases what it changed.

    Raises:
        SpecInvalid: a spec is wrong; the others were released.
        NotFound: the commit, or a model of a spec, is not there; the others were released.
        Temporary: the repository, the registry or the cluster does not answer; doing it again is harmless.
    """
    registry = RestRegistry(settings.registry_uri)
    origin = Origin(
        url=repository.url, credentials=repository.credentials, ssh_key=repository.ssh_key,
        known_hosts=repository.known_hosts, timeout_s=settings.git_timeout_s,
    )  # fmt: skip
    with tempfile.TemporaryDirectory(prefix="shiplift-git-") as folder:
        commits = Commits(Path(folder), origin, largest_bytes=MAX_SPEC_BYTES)
        entries = changed_specs(commits, repository.branch, before, after, tell)
        if not entries:
            tell("no release spec changed", before=before, after=after)
        error = release(
            specs_of(commits, entries), after, lambda model: registry.newest_of(model).version, accept, tell
        )
    if error:
        raise error


def _tell(event: str, **about: object) -> None:
    print(json.dumps({"event": event, **about}), flush=True)


def main() -> None:
    """Releases what one push to a listed repository changed."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--config", type=Path, required=True, help="the settings of this cluster, as JSON")
    parser.add_argument("--repository", required=True, help="its name in the settings")
    parser.add_argument("--before", default=NO_COMMIT, help="the commit before the push")
    parser.add_argument("--after", required=True, help="the commit pushed")
    words = parser.parse_args()
    from shiplift.pipelines.engines.argo.releases import connect  # noqa: PLC0415 - the Kubernetes client is not for every machine

    settings = load(words.config)
    repository = settings.repository(words.repository)
    if repository is None:
        raise UsageError(f"{words.repository!r} is not listed in {words.config.name}", do="Add it, or mend the name.")
    for commit in (words.before, words.after):
        if not _COMMIT.fullmatch(commit):
            raise UsageError(f"{commit[:80]!r} is no commit", do="Give 40 or 64 hexadecimal digits.")
    releases = connect(settings.namespace, RestRegistry(settings.registry_uri))
    run(repository, settings, words.before, words.after, releases.accept, _tell)


if __name__ == "__main__":
    try:
        main()
    except ShipliftError as error:
        print(f"{error.title}: {error}", file=sys.stderr)
        with contextlib.suppress(OSError):  # by hand there is none
            Path("/dev/termination-log").write_bytes(str(error).encode()[:4000])
        raise SystemExit(error.exit_code) from error
