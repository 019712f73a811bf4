"""What `shiplift gate` prints of releases that were judged again."""

from rich.table import Table
from rich.text import Text

from shiplift.pipelines.commands import console
from shiplift.pipelines.engines.replay import Flip, Replay


def show(replay: Replay) -> None:
    """Prints the releases, and which verdicts would change and why, on stdout."""
    for release in replay.releases:
        arrow = (
            f"{release.before} -> {release.after}" if release.before != release.after else f"{release.after}, as before"
        )
        console.stdout.print(
            Text.assemble((arrow, console.style(str(release.after))), f"  {release.model} version {release.version}")
        )
        if release.note:
            console.stdout.print(release.note, markup=False)
        if release.flips:
            console.stdout.print(_table(release.flips))
    console.stdout.print(f"{replay.flipped} of {len(replay.releases)} verdicts would flip", markup=False)
    if not replay.verified:
        console.stdout.print(
            "signatures of the measurements are not checked: the key stays on the cluster",
            markup=False,
            style="dim",
        )


def _table(flips: tuple[Flip, ...]) -> Table:
    table = Table(
        "check", "before", "after", "measured", "limit", "why", box=None, padding=(0, 3, 0, 0), header_style="dim"
    )
    for flip in flips:
        limits = f"{console.number(flip.limit_before)} -> {console.number(flip.limit_after)}"
        table.add_row(
            flip.name, flip.before or "-", flip.after or "-", console.number(flip.measured), limits, flip.reason
        )
    return table
