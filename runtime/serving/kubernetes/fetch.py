"""What a serving pod runs before Triton: it fetches a package by its digest and puts its model into the repository.

    python -m shiplift.runtime.serving.kubernetes.fetch --artifacts-uri URI --sha256 DIGEST --to /models --name digits

`--served-as` gives the model another name, so that a bench's repository can hold several precisions of it. For a server
in NVIDIA's image, which contains none of our code, `--guard DIR` also puts the modules there that start it. Every byte
is verified. If the store is away for a moment, this waits for it, because Kubernetes restarts a failed pod only after a
growing delay.
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
    """Installs the model `name` of the package with that digest into the repository `to`; repeating it is harmless.

    Raises:
        ArtifactCorrupt: the package is missing or altered, or has no such model.
        StorageFull: no space is left.
        Temporary: the artifact store has not answered for two minutes.
    """
    with tempfile.TemporaryDirectory(prefix="package-") as folder:
        package = Path(folder)
        tree = Artifact(sha256=sha256, size_bytes=0, kind="tree")
        _with_retries(ArtifactStore(artifacts_uri).fetch, tree, package)
        if not (package / name / "config.pbtxt").is_file():
            raise ArtifactCorrupt(f"package {sha256[:12]} has no model {name!r}", do="Rerun the release.")
        install(package, to, source=name, name=served_as or name)


_with_retries = tenacity.Retrying(
    retry=tenacity.retry_if_exception_type(Temporary),
    wait=tenacity.wait_exponential(multiplier=0.5, max=10),
    stop=tenacity.stop_after_delay(_PATIENCE_S),
    reraise=True,
)


def main() -> None:
    """Reads the command line and fetches; exits with the error's own exit code."""
    parser = argparse.ArgumentParser(description=fetch.__doc__.splitlines()[0] if fetch.__doc__ else "")
    parser.add_argument("--artifacts-uri", required=True)
    parser.add_argument("--sha256", required=True)
    parser.add_argument("--to", type=Path, required=True)
    parser.add_argument("--name", required=True)
    parser.add_argument("--served-as", default="", help="Another name for the model.")
    parser.add_argument("--guard", type=Path, help="A folder for the modules that start NVIDIA's server.")
    options = parser.parse_args()
    try:
        fetch(options.artifacts_uri, options.sha256, options.to, options.name, options.served_as)
        for module in (guard, meter) if options.guard else ():
            shutil.copyfile(str(module.__file__), options.guard / Path(str(module.__file__)).name)
    except ShipliftError as error:
        print(f"{error.title}: {error}", file=sys.stderr)
        sys.exit(error.exit_code)


if __name__ == "__main__":
    main()
