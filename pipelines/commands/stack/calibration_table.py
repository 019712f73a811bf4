"""The table of a calibration that `shiplift calibrate` prints."""

from collections.abc import Iterable
from datetime import UTC, datetime

from rich.table import Table
from rich.text import Text

from shiplift.pipelines.commands import console
from shiplift.runtime.records.calibration import Calibration, GraphKind, Rate

_GRAPHS: dict[GraphKind, str] = {
    "dense": "dense: matrix products, 75 MFLOP a row",
    "small": "small: a network of 7,000 weights",
    "trees": "trees: 100 of depth 6",
}


def show(calibration: Calibration) -> None:
    """Prints the machine, then for each graph what each form computes on one thread and at best, fastest first.

    The last column has the batch and instances x threads of the best.
    """
    share = "" if calibration.cpu_share >= calibration.cores else f", {calibration.cpu_share:g} by quota"
    console.stdout.print(
        f"{calibration.processor}, {calibration.cores} cores{share}: {', '.join(calibration.features)}", markup=False
    )
    engines = ", ".join(f"{name} {version}" for name, version in calibration.versions.items())
    computes = f"; OpenVINO computes in {', '.join(calibration.capabilities)}" if calibration.capabilities else ""
    console.stdout.print(f"{engines}{computes}", markup=False, style="dim")
    for graph, title in _GRAPHS.items():
        console.stdout.print()
        console.stdout.print(title, style="bold")
        console.stdout.print(_table([rate for rate in calibration.rates if rate.graph == graph]))
        for each in calibration.unavailable:
            if each.graph == graph:
                console.stdout.print(f"{each.described}: {each.why}", markup=False, style="dim")
    console.stdout.print()
    at = datetime.fromtimestamp(calibration.measured_at, tz=UTC).astimezone()
    quick = ", quick" if calibration.quick else ""
    console.stdout.print(f"measured {at:%Y-%m-%d %H:%M:%S} in {calibration.seconds:.0f} s{quick}", markup=False)
    if calibration.disturbed_cores:
        told = f"Other processes used {calibration.disturbed_cores:g} cores meanwhile, so no form is left out by it."
        console.stdout.print(Text(f"{told} Run `shiplift calibrate --force` on a quiet machine.", style="yellow"))


def _table(rates: Iterable[Rate]) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    table.add_column("form", overflow="fold")
    for column in ("1 thread", "rows/s", "of best"):
        table.add_column(column, justify="right", overflow="fold")
    table.add_column("with", overflow="fold")
    forms: dict[str, list[Rate]] = {}
    for rate in rates:
        forms.setdefault(rate.described, []).append(rate)
    best = {form: max(own, key=lambda rate: rate.rows_per_s) for form, own in forms.items()}
    fastest = max((rate.rows_per_s for rate in best.values()), default=0.0)
    for form, rate in sorted(best.items(), key=lambda item: -item[1].rows_per_s):
        alone = max((each.rows_per_s for each in forms[form] if each.instances * each.threads == 1), default=None)
        table.add_row(
            form,
            console.number(alone),
            console.number(rate.rows_per_s),
            f"{rate.rows_per_s / fastest:.0%}" if fastest else "-",
            f"batch {rate.batch}, {rate.instances} x {rate.threads}",
        )
    return table
