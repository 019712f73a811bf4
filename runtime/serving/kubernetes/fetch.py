"""What a serving pod runs before Triton: it fetches a package by its digest and puts its model into the repository.

    python -m shiplift.runtime.serving.kubernetes.fetch --artifacts-uri URI --sha256 DIGEST --to /models --name digits

A shared server has several packages, each with `--package DIGEST NAME URI`; one that can't be fetched is left out.
`--served-as` gives the model another name, so that a bench's repository can hold several precisions of it. For a server
in NVIDIA's image, which contains none of our code, `--guard DIR` also copies the modules that start it. Every byte is
verified. `--environments DIR` takes the environments of the package's Python models. `--cache` names a store that is
asked first, so that a pod can start while the origin is down. If neither answers, this waits for a while, because
Kubernetes restarts a failed container only after a growing delay.
"""

import argparse
import contextlib
import shutil
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import tenacity

from shiplift.runtime.base.errors import ArtifactCorrupt, ShipliftError, Temporary
from shiplift.runtime.guest.pod import guard, heartbeat, meter
from shiplift.runtime.model.python.layers import unpack_all
from shiplift.runtime.records.artifact import Artifact
from shiplift.runtime.serving.triton.repository import install_all, install_member_models
from shiplift.runtime.store.artifacts import ArtifactStore

_PATIENCE_S = 120


def fetch(
    artifacts_uri: str,
    sha256: str,
    to: Path,
    name: str,
    served_as: str = "",
    *,
    cache: str = "",
    environments: Path | None = None,
) -> None:
    """Installs the model `name` of the package with that digest into the repository `to`. Idempotent.

    Its member models are installed too, and so are the package's other models. If the model is `served_as` another
    name, their names begin with that one. The environments of its Python code are unpacked into the folder
    `environments`. A `cache` is asked before `artifacts_uri`.

    Raises:
        ArtifactCorrupt: the package is missing or altered, or has no such model.
        StorageFull: no space is left.
        Temporary: the artifact store has not answered for two minutes.
    """
    with tempfile.TemporaryDirectory(prefix="package-") as folder:
        package = Path(folder)
        tree = Artifact(sha256=sha256, size_bytes=0, kind="tree")
        _with_retries(_from_any, (cache, artifacts_uri), tree, package)
        if not (package / name / "config.pbtxt").is_file():
            raise ArtifactCorrupt(f"package {sha256[:12]} has no model {name!r}", do="Rerun the release.")
        if environments:
            unpack_all(package, environments)
        install_member_models(package, to, source=name)
        install_all(package, to, source=name, name=served_as or name)


def fetch_all(packages: Sequence[tuple[str, str, str]], to: Path, *, cache: str = "") -> dict[str, ShipliftError]:
    """Installs the packages (digest, model and address) that can be fetched; returns the others' errors by model.

    Raises:
        ShipliftError: none could be fetched.
    """
    errors = {}
    for sha256, name, uri in packages:
        try:
            fetch(uri, sha256, to, name, cache=cache)
        except ShipliftError as error:  # its neighbours serve without it
            errors[name] = error
    if errors and len(errors) == len(packages):
        raise next(iter(errors.values()))
    return errors


def _from_any(uris: tuple[str, str], tree: Artifact, folder: Path) -> None:
    cache, origin = uris
    with contextlib.suppress(ShipliftError):  # the cache's errors don't matter: the origin is asked next
        if cache:
            ArtifactStore(cache).fetch(tree, folder)
            return
    ArtifactStore(origin).fetch(tree, folder)


_with_retries = tenacity.Retrying(
    retry=tenacity.retry_if_exception_type(Temporary),
    wait=tenacity.wait_exponential(multiplier=0.5, max=10),
    stop=tenacity.stop_after_delay(_PATIENCE_S),
    reraise=True,
)


def main() -> None:
    """Reads the command line and fetches; exits with the error's own exit code."""
    parser = argparse.ArgumentParser(description=fetch.__doc__.splitlines()[0] if fetch.__doc__ else "")
    parser.add_argument("--artifacts-uri")
    parser.add_argument("--cache", default="", help="An artifact store that is asked first.")
    parser.add_argument("--sha256")
    parser.add_argument("--to", type=Path, required=True)
    parser.add_argument("--name")
    parser.add_argument("--package", nargs=3, action="append", default=[], metavar=("DIGEST", "NAME", "URI"))
    parser.add_argument("--served-as", default="", help="Another name for the model.")
    parser.add_argument("--environments", type=Path, help="A folder for the package's Python environments.")
    parser.add_argument("--guard", type=Path, help="A folder for the modules that start NVIDIA's server.")
    options = parser.parse_args()
    if not options.package and not (options.artifacts_uri and options.sha256 and options.name):
        parser.error("name a package: --artifacts-uri, --sha256 and --name, or --package")
    try:
        if options.package:
            _report(fetch_all(options.package, options.to, cache=options.cache))
            return
        fetch(
            options.artifacts_uri,
            options.sha256,
            options.to,
            options.name,
            options.served_as,
            cache=options.cache,
            environments=options.environments,
        )
        for module in (guard, heartbeat, meter) if options.guard else ():
            shutil.copyfile(str(module.__file__), options.guard / Path(str(module.__file__)).name)
    except ShipliftError as error:
        print(f"{error.title}: {error}", file=sys.stderr)
        sys.exit(error.exit_code)


def _report(errors: dict[str, ShipliftError]) -> None:
    for name, error in errors.items():
        print(f"{name} is left out: {error.title}: {error}", file=sys.stderr)


if __name__ == "__main__":
    main()
