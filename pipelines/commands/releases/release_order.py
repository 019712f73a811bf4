"""What `release` and `rerun` share: placing an order, and following the release to its end."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import typer

from shiplift.pipelines.commands import console, edge
from shiplift.pipelines.engines.answers import Accepted
from shiplift.pipelines.engines.protocol import Engine
from shiplift.runtime.base.errors import Cancelled, ShipliftError
from shiplift.runtime.store.registry.terms import model_and_version


@dataclass(frozen=True, kw_only=True)
class ReleaseOrder:
    """A request for a release, from the command line."""

    name: str
    spec: str
    again: bool
    allow_older: bool


def place(engine: Engine, order: ReleaseOrder, *, detach: bool, watch: bool, as_json: bool) -> None:
    """Places an order. Follows an attended or watched release to its end, and exits with the release's exit code."""
    accepted = engine.order(order.name, order.spec, again=order.again, allow_older=order.allow_older)
    if not accepted.queued and not engine.under_way(accepted.name):
        edge.say("this release has already ended; `shiplift rerun` runs it again")
    model, _ = model_and_version(order.name)
    follow(engine, accepted, model=model, detach=detach, watch=watch, as_json=as_json)


def follow(
    engine: Engine,
    accepted: Accepted,
    *,
    model: str,
    detach: bool,
    watch: bool,
    as_json: bool,
    expected: int = 0,
) -> None:
    """Follows an attended or watched release to its end, and exits with the release's exit code.

    A release that ends with the `expected` exit code did what the command asked for.
    """
    if detach or not (engine.attended or watch):
        edge.print_result(accepted, _show_accepted, as_json=as_json)
        return
    with _interruptible(engine, accepted.name):
        report = console.follow(engine, accepted.name, model=model, quiet=as_json)
    edge.print_result(report, console.show_report, as_json=as_json)
    raise typer.Exit(0 if report.exit_code == expected else report.exit_code)


def _show_accepted(accepted: Accepted) -> None:
    edge.say(f"{'accepted' if accepted.queued else 'already there'}: {accepted.name}")


@contextmanager
def _interruptible(engine: Engine, name: str) -> Iterator[None]:
    """On Ctrl-C, cancels an attended release and waits for its clean-up. Other releases continue unwatched."""
    try:
        yield
    except KeyboardInterrupt:
        if not engine.attended:
            raise
        edge.say("cancelling and cleaning up ...")
        engine.stop(name)
        tell_if_promoted(engine, name)
        raise Cancelled(f"release {name} was cancelled", do="Run the same command again to resume it.") from None


def tell_if_promoted(engine: Engine, name: str) -> None:
    """If a cancelled release was promoted anyway, because its traffic was already moving, says so and exits."""
    try:
        report = engine.result(name)
    except ShipliftError:  # it was cancelled before it began
        return
    if report.exit_code == 0:
        edge.say("it was promoted before it could be cancelled; `shiplift rollback` undoes that")
        console.show_report(report)
        raise typer.Exit(0) from None
