"""What a serving pod runs before Triton: fetches a package by its digest and puts its model into the repository.

    python -m shiplift.runtime.serving.kubernetes.fetch --artifacts-uri URI --sha256 DIGEST --to /models --name digits

`--served-as` gives the model another name, so that several precisions of it can lie in the repository of a bench. For a
server in NVIDIA's image, which has nothing of ours, `--guard DIR` also leaves there what it is started through.
Every byte is verified on the way. A store that is away for a moment is waited for here, since a pod that fails is only
started again after a growing pause.
"""

import argparse
import shutil
import sys
import tempfile
from pathlib import Path

import tenacity

from shiplift.runtime.base.errors import ArtifactCorrupt, ShipliftError, Temporary
from shiplift.runtime.host import meter
from shiplift.runtime.records.artifact import Artifact
from shiplift.runtime.serving.kubernetes import guard
from shiplift.runtime.serving.triton.repository import install
from shiplift.runtime.store.artifacts import ArtifactStore

_PATIENCE_S = 120


def fetch(artifacts_uri: str, sha256: str, to: Path, name: str, served_as: str = "") -> None:
    """Installs the model `name` of the package with that digest into the repository `to`; twice is harmless.

    Raises:
        ArtifactCorrupt: the package is missing, altered, or holds no such model.
        StorageFull: no space is left.
        Temporary: the artifact store has not answered for two minutes.
    """
    with tempfile.TemporaryDirectory(prefix="package-") as folder:
        package = Path(folder)
        tree = Artifact(sha256=sha256, size_bytes=0, kind="tree")
        _patiently(ArtifactStore(artifacts_uri).fetch, tree, package)
        if not (package / name / "config.pbtxt").is_file():
            raise ArtifactCorrupt(f"package {sha256[:12]} holds no model {name!r}", do="Rerun the release.")
        install(package, to, source=name, name=served_as or name)


_patiently = tenacity.Retrying(
    retry=tenacity.retry_if_exception_type(Temporary),
    wait=tenacity.wait_exponential(multiplier=0.5, max=10),
    stop=tenacity.stop_after_delay(_PATIENCE_S),
    reraise=True,
)


def main() -> None:
    """Reads the command line; ends with the error's own exit code."""
    parser = argparse.ArgumentParser(description=fetch.__doc__.splitlines()[0] if fetch.__doc__ else "")
    parser.add_argument("--artifacts-uri", required=True)
    parser.add_argument("--sha256", required=True)
    parser.add_argument("--to", type=Path, required=True)
    parser.add_argument("--name", required=True)
    parser.add_argument("--served-as", default="", help="Another name for the model.")
    parser.add_argument("--guard", type=Path, help="A folder for what NVIDIA's server is started through.")
    words = parser.parse_args()
    try:
        fetch(words.artifacts_uri, words.sha256, words.to, words.name, words.served_as)
        for module in (guard, meter) if words.guard else ():
            shutil.copyfile(str(module.__file__), words.guard / Path(str(module.__file__)).name)
    except ShipliftError as error:
        print(f"{error.title}: {error}", file=sys.stderr)
        sys.exit(error.exit_code)


if __name__ == "__main__":
    main()
