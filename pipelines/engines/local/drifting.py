"""What is known of how production's requests differ from the data that its versions were validated on.

The comparison itself is in `drift_measuring`: what reads its result must not wait for its imports.
"""

from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path

from pydantic import ValidationError

from shiplift.runtime.base.errors import NotFound
from shiplift.runtime.base.names import serving_name
from shiplift.runtime.base.storage import write_atomically
from shiplift.runtime.records.drift import DriftReport, DriftState
from shiplift.runtime.records.kinds.package import Package
from shiplift.runtime.serving.machine.served import every_served, served


def state_of(home: Path, model: str) -> DriftState | None:
    """What was last found of the version that serves; None if it was not compared yet."""
    with suppress(FileNotFoundError, ValidationError):
        state = DriftState.model_validate_json(_file(home, model).read_bytes())
        now = served(home, model)  # a large record: it is read only for a state, which few models have
        return state if now and now.package.drifting and state.package == identity(now.package) else None
    return None


def keep(home: Path, model: str, state: DriftState) -> None:
    """Keeps what was found.

    Raises:
        StorageFull: no space is left.
    """
    write_atomically(_file(home, model), state.model_dump_json())


def every_state(home: Path) -> Iterator[tuple[Package, DriftState | None]]:
    """The served packages whose drift is measured, and what was last found of each."""
    for each in every_served(home):
        if each.package.drifting:
            yield each.package, state_of(home, each.package.model)


def forget_others(home: Path, models: Iterable[str]) -> None:
    """Removes the validation data that were kept of models whose drift is measured no more."""
    kept = tuple(f"{serving_name(model)}." for model in models)
    for file in (home / "production" / "drift").glob("*.npz"):
        if not file.name.startswith((".", *kept)):
            file.unlink(missing_ok=True)


def found_in_bake(home: Path, model: str) -> str | None:
    """How the version that serves drifted (empty: not, as far as was seen); None if it could not be compared."""
    known = state_of(home, model)
    if known is None or known.report.problem:
        return None
    return known.sentence


def identity(package: Package) -> str:
    """What tells a served package from another version, or from another promotion of its files."""
    return f"{package.version} {package.repository.sha256}"


def report_of(home: Path, model: str, *, now: bool) -> DriftReport:
    """The last report of a model; a new one if there is none, or with `now`. Nobody is told of a new one.

    Raises:
        NotFound: its drift is not measured.
    """
    state = served(home, model)
    if state is None or state.package.drifting is None:
        raise NotFound(
            f"the drift of {model!r} is not measured", do="Set `capture` and `drift: {}` in its spec, and release it."
        )
    from shiplift.pipelines.engines.local.drift_measuring import measured  # noqa: PLC0415 - PyArrow and gRPC

    known = state_of(home, model)
    return known.report if known and not now else measured(home, state.package)


def _file(home: Path, model: str) -> Path:
    return home / "production" / "drift" / f"{serving_name(model)}.json"
