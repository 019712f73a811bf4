"""Sends each model that production serves on this machine a golden request every few seconds, and checks the answer.

Health endpoints and counters don't show whether answers are right. The prober runs in a thread of the watchdog, which
acts on its findings. Failures while a model moves to another version count for neither version.
"""

import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path

from shiplift.pipelines.engines.local import pulses, stack
from shiplift.pipelines.engines.local.pulses import Pulse
from shiplift.runtime.base.errors import GoldenMismatch, ServerFailed, ShipliftError
from shiplift.runtime.base.names import serving_name
from shiplift.runtime.guest.pod.heartbeat import MARGIN_S
from shiplift.runtime.model.tensors import Arrays, first_requests, inputs_in, load_npz
from shiplift.runtime.records.kinds.package import Package
from shiplift.runtime.serving.machine import traffic
from shiplift.runtime.serving.machine.recovery import moves
from shiplift.runtime.serving.machine.served import every_served, served
from shiplift.runtime.serving.machine.traffic import PackageTraffic
from shiplift.runtime.serving.triton.client import (
    OWN_REQUESTS,
    TOLERANCE,
    TritonClient,
    check_package,
    difference,
    infer_one_by_one,
)
from shiplift.runtime.serving.triton.repository import GOLDEN
from shiplift.runtime.store.artifacts import ArtifactStore

EVERY_S = 5.0
BAD_BEATS = 2  # wrong answers or refusals in a row before the watchdog acts
SLOW_BEATS = 6
_SLOW_S, _SLOW_FACTOR = 5.0, 20.0  # slow means longer than both: these seconds, and this many times the fastest answer
_THREADS = 4
# A full queue only means that the model is busy; and a worker that crashed starts again by itself, after its pause.
_ITS_OWN = ("queue", "the model's worker", "the model's process")
_TIMES = 10  # that a request is asked again, to see whether its answer varies
_VARIES = "; its answers depend on what else is asked at the time"


@dataclass(frozen=True, kw_only=True)
class ProbeResult:
    """One golden request: how long it took, and what went wrong; `bad` if the answer was wrong or refused.

    `varies`: the answer is another one from one time to the next. Loading the model again can't help that. `counted`
    are the requests that the server had counted before (None: it did not say), `own` those that were sent then.
    """

    seconds: float
    problem: str = ""
    bad: bool = False
    varies: bool = False
    counted: int | None = None
    own: int = 0


@dataclass(frozen=True, kw_only=True)
class State:
    """What the prober knows about a package: bad and slow answers in a row, its fastest answer, its pulse and tally."""

    package: Package
    bad: int = 0
    slow: int = 0
    fastest_s: float = 0.0
    varies: bool = False
    pulse: Pulse = field(default_factory=Pulse)
    tally: PackageTraffic | None = None

    def after(self, beat: ProbeResult, now: float) -> "State":
        """The state after another beat."""
        fastest = min(self.fastest_s or beat.seconds, beat.seconds)
        limit = max(_SLOW_S, _SLOW_FACTOR * fastest)
        slow = f"it took {beat.seconds:.1f} s to answer, usually {fastest:.2f} s" if beat.seconds > limit else ""
        problem = beat.problem or slow
        answered = beat.problem == ""
        return State(
            package=self.package,
            bad=self.bad + 1 if beat.bad else 0,
            slow=self.slow + 1 if problem and not (beat.bad or beat.varies) else 0,
            varies=self.varies or beat.varies,
            fastest_s=fastest if answered else self.fastest_s,
            pulse=Pulse(verified_at=now if answered else self.pulse.verified_at, finding=problem),
            tally=self._tally_after(beat, now),
        )

    def _tally_after(self, beat: ProbeResult, now: float) -> PackageTraffic | None:
        if beat.counted is None:
            return self.tally
        if self.tally is None:
            digest = self.package.repository.sha256
            return PackageTraffic(digest=digest, since=now, until=now, counted=beat.counted, own=beat.own)
        return self.tally.after(beat.counted, beat.own, now)


class Prober:
    """The prober of a home's production."""

    def __init__(self, home: Path, *, beat: "Callable[[str, Package, Arrays], ProbeResult] | None" = None) -> None:
        self._home = home
        self._beat = beat or beat_of
        self._states: dict[str, State] = {}
        self._golden: dict[str, Arrays] = {}

    def run(self) -> None:
        """Probes until the process ends."""
        while True:
            try:
                self.look()
            except (ShipliftError, OSError) as error:
                print(f"prober: {error}", flush=True)
            time.sleep(EVERY_S)

    def look(self) -> None:
        """Sends one request to each served model."""
        running = stack.read(self._home)
        if running is None or not running.runs("triton"):
            return
        packages = {serving_name(each.package.model): each.package for each in every_served(self._home)}
        address = f"{stack.HOST}:{running.grpc_port}"
        uri = stack.site(self._home, running).artifacts_uri
        with ThreadPoolExecutor(_THREADS) as pool:
            states = list(pool.map(lambda item: self._ask(address, uri, *item), packages.items()))
        self._states = dict(zip(packages, states, strict=True))
        self._golden = {
            package.repository.sha256: self._golden[package.repository.sha256]
            for package in packages.values()
            if package.repository.sha256 in self._golden
        }
        pulses.write(self._home, {name: state.pulse for name, state in self._states.items()})
        traffic.write(self._home, {name: state.tally for name, state in self._states.items() if state.tally})

    def failing(self) -> dict[str, str]:
        """The models that keep answering wrongly or refusing, by served name, with what went wrong."""
        return {name: state.pulse.finding for name, state in self._states.items() if state.bad >= BAD_BEATS}

    def slow(self) -> dict[str, str]:
        """The models that have been slow or silent for a while, by served name, with what went wrong."""
        return {name: state.pulse.finding for name, state in self._states.items() if state.slow >= SLOW_BEATS}

    def varying(self) -> dict[str, str]:
        """The models whose answers vary by themselves, by served name, with what went wrong last."""
        return {name: state.pulse.finding for name, state in self._states.items() if state.varies}

    def wrong(self, name: str, digest: str) -> str | None:
        """What is wrong with the answers of this package; empty if nothing is, None if it has not been asked yet."""
        state = self._states.get(name)
        if state is None or state.package.repository.sha256 != digest:
            return None
        if state.bad >= BAD_BEATS or state.slow >= SLOW_BEATS:
            return state.pulse.finding
        return "" if state.pulse.verified_at else None

    def package(self, name: str) -> Package | None:
        """The package that a served name should answer with."""
        state = self._states.get(name)
        return state.package if state else None

    def _ask(self, address: str, artifacts_uri: str, name: str, package: Package) -> State:
        state = self._states.get(name)
        if state is None or state.package != package:
            state = State(package=package, tally=self._known(name, package))
        try:
            golden = self._golden_of(package, artifacts_uri)
        except ShipliftError as error:
            return replace(
                state, pulse=state.pulse.model_copy(update={"finding": f"it can't be checked: {error.what}"})
            )
        beat = self._beat(address, package, golden)
        if beat.problem and self._moves(name, package):
            return state
        return state.after(beat, time.time())

    def _known(self, name: str, package: Package) -> PackageTraffic | None:
        """What an earlier process counted of a package."""
        tally = traffic.tallies(self._home).get(name)
        return tally if tally and tally.digest == package.repository.sha256 else None

    def _moves(self, name: str, package: Package) -> bool:
        now = served(self._home, package.model)
        return moves(self._home, name) or now is None or now.package != package

    def _golden_of(self, package: Package, artifacts_uri: str) -> Arrays:
        digest = package.repository.sha256
        if digest not in self._golden:
            golden = load_npz(ArtifactStore(artifacts_uri).read_from_tree(package.repository, GOLDEN))
            self._golden[digest] = {name: array.copy() for name, array in first_requests(golden, 1).items()}
        return self._golden[digest]


def beat_of(address: str, package: Package, golden: Arrays) -> ProbeResult:
    """Sends a served package its golden request."""
    limit_s, began = package.needs.request_timeout_s + MARGIN_S, time.monotonic()
    name, problem, bad, varies = serving_name(package.model), "", False, False
    counted, sent = None, Counter[str]()
    try:
        with TritonClient(address, timeout_s=limit_s, request_id=OWN_REQUESTS) as client:
            sent = client.sent
            counted = client.counts(name).total
            try:
                check_package(client, name, package, golden)
            except GoldenMismatch as error:
                varies = _varies(client, package, golden)
                problem, bad = f"{error.what}{_VARIES if varies else ''}", not varies
    except ServerFailed as error:
        problem = error.what
        bad = not any(words in problem.lower() for words in _ITS_OWN)
    except ShipliftError as error:
        problem = error.what
    seconds = time.monotonic() - began
    return ProbeResult(seconds=seconds, problem=problem, bad=bad, varies=varies, counted=counted, own=sent[name])


def _varies(client: TritonClient, package: Package, golden: Arrays) -> bool:
    """Whether a served package answers its golden request differently from one time to the next.

    No is taken for granted if its server was proved to answer each row alike in any company. Then the server is ill.
    """
    if (package.proof and package.proof.clients > 1) or package.signature.streamed:
        return False
    name, signature = serving_name(package.model), package.signature
    inputs, tolerance = inputs_in(golden, signature), TOLERANCE[package.precision]
    first, *others = (
        infer_one_by_one(client, name, signature, inputs, sequence=package.stateful) for _ in range(_TIMES)
    )
    return any(difference(first[each], other[each]) > tolerance for other in others for each in first)
