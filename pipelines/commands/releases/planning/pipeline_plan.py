"""Planning a pipeline: its members' profiles are gathered, the cheapest settings found, and the plan shown."""

from pathlib import Path

from rich.table import Table

from shiplift.pipelines.commands import console, edge
from shiplift.pipelines.commands.releases.pipelines import check
from shiplift.pipelines.commands.releases.pipelines.check import Composed, require_sound
from shiplift.pipelines.engines.protocol import PastReleases
from shiplift.runtime.base.errors import NotFound, UsageError
from shiplift.runtime.composition.checked import CheckedPipeline
from shiplift.runtime.planning import measured, profiles
from shiplift.runtime.planning.arrivals import Arrivals, recorded
from shiplift.runtime.planning.options import Problem
from shiplift.runtime.planning.plan import Plan, plan
from shiplift.runtime.planning.profiles import MemberConfiguration, Profiles
from shiplift.runtime.planning.scenario import graph_of
from shiplift.runtime.records.kinds.package import Package
from shiplift.runtime.records.measurement import LoadReport, Tuned
from shiplift.runtime.spec.pipeline import PipelineSpec, parse

_UNVERIFIED = "signatures of the measurements are not checked: the key stays on the cluster"
_ALWAYS = "the plan assumes that the condition of {} always holds: set `probability` in the profiles if it does not"


def arrivals_of(rate: float | None, cv: float | None, file: Path | None) -> Arrivals:
    """The arrivals that the options describe.

    Raises:
        UsageError: neither a rate nor a file is given, or both are, or the file has no arrivals.
    """
    if (rate is None) == (file is None):
        raise UsageError("a plan needs either --rate or --arrivals", do="For example --rate 200.")
    if file is not None and cv is not None:
        raise UsageError("--cv only goes with --rate: recorded arrivals have their own", do="Leave out one of the two.")
    if file is not None:
        return recorded(edge.read(file))
    return Arrivals(rate_per_s=rate or 0, cv=1.0 if cv is None else cv)


def compose(engine: PastReleases, file: Path, text: str, known: Profiles) -> Composed:
    """Reads and checks a pipeline; its members are looked up only if a profile is missing.

    Raises:
        SpecInvalid: the text is not YAML, or has wrong fields.
        StackDown, Temporary: the stack or the cluster, which knows the members, does not answer.
    """
    missing = parse(text).spec.members.keys() - known.members.keys()
    return check.compose(engine if missing else None, file, text)


def known_profiles(file: Path | None) -> Profiles:
    """The profiles in a file; empty without a file."""
    return profiles.parse(edge.read(file)) if file else Profiles()


def make(
    engine: PastReleases, composed: Composed, known: Profiles, arrivals: Arrivals, p99_ms: float | None, seed: int
) -> Plan:
    """The plan of a sound pipeline. Members that the profiles leave out are looked up in their releases.

    Raises:
        SpecInvalid: the pipeline's check found mistakes, or the profiles belong to another pipeline.
        UsageError: no limit is given.
        NotFound: a member has no profile, and no release measured it.
        NoPlan: no settings meet the limit.
    """
    require_sound(composed)
    if p99_ms is None:
        raise UsageError("a plan needs a limit", do="Give the end-to-end p99 with --p99-ms, for example 50.")
    profiles.require_fit(composed.written.spec, known)
    packages = {member.name: member.package for member in composed.checked.members}
    spec = merged(composed.written.spec, packages)
    looked_up = [name for name in spec.members if name not in known.members]
    decoders = {name: packages[name] for name in looked_up if spec.members[name].image}
    seen = known.model_copy(update={"members": {**_decoders(engine, spec, decoders), **known.members}})
    complete = with_measured(engine, {name: packages[name] for name in looked_up if name not in decoders}, seen)
    problem = Problem(
        spec=spec,
        graph=graph_of(spec, bls=composed.checked.way == "bls"),
        profiles=complete,
        arrivals=arrivals,
        p99_ms=p99_ms,
        seed=seed,
        least_batch=least_batch(spec, composed.checked),
    )
    return plan(problem, notes=tuple(_notes(spec, known, unverified=bool(looked_up) and not engine.verified)))


def merged(spec: PipelineSpec, packages: dict[str, Package]) -> PipelineSpec:
    """The pipeline with members of the same model version merged into one, as in a bundle."""
    first: dict[object, str] = {}
    names = {}
    for name, member in spec.members.items():
        package = packages.get(name)
        names[name] = first.setdefault((package.model, package.version) if package else repr(member), name)
    steps = {name: step.model_copy(update={"member": names.get(step.member, "")}) for name, step in spec.steps.items()}
    members = {name: member for name, member in spec.members.items() if name in first.values()}
    return spec.model_copy(update={"steps": steps, "members": members})


def least_batch(spec: PipelineSpec, checked: CheckedPipeline) -> dict[str, int]:
    """How large each member's largest batch must at least be to take what its edges bring.

    An edge with any number of rows needs more than 1.
    """
    least: dict[str, int] = {}
    for wire in checked.edges:
        step = spec.steps.get(wire.taker)
        if step and step.member and step.for_each is None:
            rows = 2 if wire.shape[0] == -1 else wire.shape[0]
            least[step.member] = max(rows, least.get(step.member, 1))
    return least


def with_measured(engine: PastReleases, packages: dict[str, Package], known: Profiles) -> Profiles:
    """The profiles, completed with those of these members from the records of their releases.

    Raises:
        NotFound: a member's release measured no execution times; the message says how to get them.
    """
    found: dict[str, tuple[MemberConfiguration, ...]] = {}
    reports: list[LoadReport] = []
    for name, package in packages.items():
        history = engine.history(engine.report(package.model, package.version))
        tuned, report = history.last(Tuned), history.last(LoadReport)
        found[name] = measured.configurations_of(tuned, report) if tuned else ()
        reports += [report] if report else []
        if not found[name]:
            raise NotFound(
                f"the release of {package.model}/{package.version}, the member {name!r}, has no trials with execution "
                "times, so it is unknown how long it takes",
                do=f"Run `shiplift rerun {package.model}/{package.version}`, which tunes it, or write its times into a "
                "file (`members` in the example of docs/howto/pipelines.md) and name that with --profiles.",
            )
    overhead = known.request_ms or measured.typical_request_ms(reports)
    return known.model_copy(update={"members": {**found, **known.members}, "request_ms": overhead})


def _decoders(
    engine: PastReleases, spec: PipelineSpec, decoders: dict[str, Package]
) -> dict[str, tuple[MemberConfiguration, ...]]:
    """Decoders of images, as the pipeline's newest load test measured them: they have no release of their own.

    Raises:
        NotFound: no release of the pipeline measured one of them.
    """
    if not decoders:
        return {}
    releases = sorted(engine.reports(spec.name), key=lambda report: report.version, reverse=True)
    tests = (engine.history(release).last(LoadReport) for release in releases)
    loads = {load.name: load for load in next((test.members for test in tests if test and test.members), ())}
    found: dict[str, tuple[MemberConfiguration, ...]] = {}
    for name, package in decoders.items():
        if name not in loads or loads[name].compute_ms <= 0:
            raise NotFound(
                f"nothing has measured how long the decoder {name!r} takes",
                do="Release the pipeline once: its load test measures that. Or write its times into a file (`members` "
                "in the example of docs/howto/pipelines.md) and name that with --profiles.",
            )
        found[name] = (measured.configuration_under_load(loads[name], package.config),)
    return found


def _notes(spec: PipelineSpec, known: Profiles, *, unverified: bool) -> list[str]:
    """What the plan assumes."""
    always = [name for name, step in spec.steps.items() if step.when and name not in known.steps]
    return [*([_UNVERIFIED] if unverified else []), *(_ALWAYS.format(name) for name in always)]


def show(made: Plan) -> None:
    """Prints the plan as a table."""
    table = Table(
        "member",
        "computes",
        "batch",
        "delay",
        "instances",
        "threads",
        "cores",
        "MB",
        "busy",
        "of the time",
        box=None,
        padding=(0, 3, 0, 0),
        header_style="dim",
    )
    for member in made.members:
        config = member.config
        table.add_row(
            member.name,
            member.described,
            f"{config.max_batch} ({member.mean_batch:.1f})",
            f"{config.queue_delay_us / 1000:g} ms",
            str(config.instances),
            str(config.threads),
            f"{member.cores:g}",
            f"{member.memory_mb:,.0f}",
            f"{member.utilisation:.0%}",
            f"{member.latency_share:.0%}",
        )
    for step in made.python:
        table.add_row(
            step.name,
            "Python function",
            "",
            "",
            "",
            "",
            f"({step.busy_cores:.2g})",
            "",
            "",
            f"{step.latency_share:.0%}",
        )
    console.stdout.print(table)
    for line in _lines(made):
        console.echo(line)


def _lines(made: Plan) -> list[str]:
    ratio = made.worst_case_cores / made.cores if made.cores else 1.0
    instances = (
        f"instances: {made.instances} of the pipeline itself (`instances` in its file), "
        f"requests wait for these {made.waiting_share:.0%} of their time"
    )
    workers = f"workers: {made.workers} for its Python steps (`workers` in its file)"
    predicted = (
        f"predicted at {made.rate_per_s:.4g}/s, CV {made.cv:.3g}: p50 {made.p50_ms:.4g} ms, p99 {made.p99_ms:.4g} ms "
        f"(limit {made.limit_p99_ms:g} ms)"
    )
    cost = (
        f"cost: {made.cores:g} cores, {made.memory_mb:,.0f} MB; every member at the worst case: "
        f"{made.worst_case_cores:g} cores, {made.worst_case_memory_mb:,.0f} MB ({ratio:.1f} times the cores)"
    )
    return [
        predicted,
        *([instances] if made.instances else []),
        *([workers] if made.workers else []),
        cost,
        *(f"note: {note}" for note in made.notes),
    ]
