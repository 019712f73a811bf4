"""Building a pipeline's bundle: the repository that Triton serves."""

from pathlib import Path

from shiplift.pipelines.commands import console
from shiplift.pipelines.commands.releases.pipelines.check import Composed, require_sound
from shiplift.pipelines.engines.protocol import PastReleases
from shiplift.runtime.base.errors import UsageError
from shiplift.runtime.base.names import serving_name
from shiplift.runtime.composition.checked import Way
from shiplift.runtime.records.base import Record
from shiplift.runtime.serving.bundles.repository import write_bundle


class BuiltBundle(Record):
    """A bundle's repository: the name that clients use, how it runs, and what each model in it is."""

    pipeline: str
    name: str
    bundle: str
    way: Way
    repository: str
    models: dict[str, str]


def build(engine: PastReleases, composed: Composed, out: Path | None) -> BuiltBundle:
    """Writes the bundle of a sound pipeline into `out`.

    Raises:
        SpecInvalid: its check found mistakes.
        UsageError: no folder is named, or it is not empty, or the members' promotions can't be verified from here.
        ArtifactCorrupt: a member's package is missing or was changed.
    """
    require_sound(composed)
    if out is None:
        raise UsageError("`build` needs a folder to write to", do="Name a new one with --out.")
    if not engine.verified:
        raise UsageError(
            "the key that verifies the members' promotions stays on the cluster",
            do="Build where the stack runs.",
        )
    spec, checked = composed.written.spec, composed.checked
    models = write_bundle(out, spec, checked, composed.code, engine.store())
    return BuiltBundle(
        pipeline=spec.name,
        name=serving_name(spec.name),
        bundle=checked.digest,
        way=checked.way,
        repository=str(out),
        models=models,
    )


def show(built: BuiltBundle) -> None:
    """Lists what was written."""
    console.echo(f"{built.repository}: bundle {built.bundle} of {built.pipeline}, which clients call {built.name}")
    for name, what in built.models.items():
        console.echo(f"  {name}: {what}")
