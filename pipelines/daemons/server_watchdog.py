"""Frees production's Triton from executions that never end. Runs as a child process of the dispatcher.

The bundled server's backends stop an execution at its time limit, or end the model's own worker. An instance of the
Python backend that continues even then can't be ended from inside the server, so this watchdog acts, in steps:
1. It reloads the stuck model, which gives it new instances and leaves other models alone.
2. If that doesn't help, it ends the server, and the dispatcher starts it again.
3. If the last restart was too recent, it unloads only the stuck model, and restarts the server later.

A model that answers golden requests wrongly, or refuses them, is reloaded from the artifact store; if that doesn't
help, steps 2 and 3 follow. An answer that is wrong only at times is reported, unless its release proved that it doesn't
vary. A model that is not loaded is no reason for a restart: it is tried again, after pauses
(`runtime.serving.machine.loading`). So is one whose process in Triton's Python backend has ended, which Triton itself
never starts again (`runtime.serving.machine.hosts`). A server that uses too much memory is ended at once. Its log is
emptied when too long.
"""

import contextlib
import os
import subprocess
import threading
import time
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path

from google.protobuf.text_format import ParseError

from shiplift.pipelines.daemons import baking, messenger
from shiplift.pipelines.daemons.prober import Prober
from shiplift.pipelines.engines.local import captured, incidents, site_file, stack
from shiplift.runtime.base.errors import ShipliftError
from shiplift.runtime.base.names import serving_name
from shiplift.runtime.base.text import printable
from shiplift.runtime.events.emit import emit
from shiplift.runtime.events.event import model_event
from shiplift.runtime.events.kinds import EventKind
from shiplift.runtime.guest.pod.heartbeat import MARGIN_S, Counters, Heartbeat, answer, counters
from shiplift.runtime.host.processes import inherited, own_module, start_child, stop
from shiplift.runtime.records.site import Machine, Site
from shiplift.runtime.serving.machine import baking as noted
from shiplift.runtime.serving.machine import server_memory
from shiplift.runtime.serving.machine.hosts import Hosts
from shiplift.runtime.serving.machine.loading import Loader
from shiplift.runtime.serving.machine.quarantine import QUARANTINED, Crashed, crashed, note_quarantined
from shiplift.runtime.serving.machine.recovery import reinstall, reload_stuck, unload_stuck
from shiplift.runtime.serving.machine.restarts import HEALTHY_S, Restarts
from shiplift.runtime.serving.machine.served import every_served, names_in_server
from shiplift.runtime.serving.triton.config import parse

_LOOK_S = 1.0
_ALONE = "Release the model again, with `search: {max_batch: [1]}` if its rows belong together."
_RELOAD_S = 60.0
AFTER_RELOAD_S = 10.0  # a model that is still stuck by then will not recover
SILENCE_S = 20.0
_END_S = 1.0  # a stuck server does not drain, so a longer grace period would be wasted
LONGEST_LOG_MB = 256  # the only file on disk that a model in the server can make grow


class ServerWatchdog:
    """The watchdog of a home's production server."""

    def __init__(
        self, home: Path, *, prober: Prober | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """Without a `prober`, answers are not checked."""
        self._home, self._clock = home, clock
        self._prober = prober or Prober(home)
        self._hurried: dict[str, float] = {}
        self._pid = 0
        self._answered_at = 0.0
        self._heartbeat = Heartbeat()
        self._stopped: dict[str, float] | None = None
        self._reloaded: dict[str, float] = {}
        self._unloaded: set[str] = set()
        self._loader: Loader | None = None
        self._hosts: Hosts | None = None
        self._down: dict[str, Crashed] = {}
        self._missing_at: dict[str, float] = {}
        self._crashes: dict[str, tuple[float, int]] = {}
        self._told: set[tuple[str, str]] = set()
        self._ailing: dict[str, tuple[str, int]] = {}
        self._restarts = Restarts()
        self._memory_mb = 0

    def look(self) -> None:
        """Looks at the server once, and acts on what it finds."""
        running = stack.read(self._home)
        if running is None or not running.runs("triton"):
            return
        pid = running.processes["triton"].pid
        if pid != self._pid:
            self._forget(pid)
        self._bound_log()
        if self._memory_is_over(running):
            return
        metrics = answer(f"http://{stack.HOST}:{running.metrics_port}/metrics")
        live = answer(f"http://{stack.HOST}:{running.http_port}/v2/health/live")
        now = self._clock()
        if metrics is None or live is None:
            if now - self._answered_at > SILENCE_S:
                self._restart(running, "", f"Triton has not answered for {SILENCE_S:.0f} s")
            return
        self._answered_at = now
        models = counters(metrics)
        self._note_stopped(models)
        self._note_crashed(crashed(pid))
        self._missing_at |= dict.fromkeys(self._load_missing(running), now)
        # What the prober knows of a model that was loaded just now may be from before.
        missing = {name for name, at in self._missing_at.items() if now - at < AFTER_RELOAD_S}
        if self._unloaded and not self._restarts.wait_s(now):
            self._restart_stuck(running, "", f"{', '.join(sorted(self._unloaded))} got stuck and had to wait", now)
        else:
            failing = {name: why for name, why in self._prober.failing().items() if name not in self._baking()}
            stuck = failing | self._heartbeat.stuck(models, now)
            self._free(running, {model: why for model, why in stuck.items() if model not in missing}, now)
            self._hurry(running, {name: why for name, why in self._prober.slow().items() if name not in missing}, now)
        self._report(self._prober.varying())
        self._tell_health()

    def _baking(self) -> set[str]:
        """The models that bake: a wrong answer rolls them back, so they are not loaded again."""
        known = (each for each in noted.everything(self._home) if each.active and noted.bakes(self._home, each))
        return {serving_name(each.model) for each in known if any(alarm.kind == "answers" for alarm in each.alarms)}

    def _forget(self, pid: int) -> None:
        """Starts over with a new server process, whose counters begin at 0.

        The first server that this watchdog sees may have been running for long. Executions that it stopped earlier are
        no news, so its counters are the baseline.
        """
        self._stopped = {} if self._pid else None
        self._pid = pid
        self._answered_at = self._clock()
        self._heartbeat = Heartbeat(patience_of=partial(answer_patience_s, self._home))
        self._reloaded, self._unloaded, self._crashes = {}, set(), {}
        if self._loader:
            self._loader.close()
        self._loader, self._hosts, self._down, self._missing_at = None, None, {}, {}
        self._memory_mb = site_file.server_memory_mb(self._home)

    def _load_missing(self, running: stack.Stack) -> set[str]:
        """Loads what should serve and does not, when its pause is over; returns the served names that this concerns."""
        repository = self._home / "production" / "models"
        if self._loader is None or self._hosts is None:
            self._loader = Loader(repository, f"{stack.HOST}:{running.grpc_port}")
            self._hosts = Hosts(self._pid, repository)
        try:
            down = self._hosts.look(self._loader.states)
            self._note_down(down)
            now = time.time()
            paused = {name for name, crash in down.items() if now < crash.at + crash.pause_s}
            missing = self._loader.look(but=frozenset(self._unloaded | paused), again=down)
        except ShipliftError:  # the server's silence is dealt with elsewhere
            return set()
        packages = [each.package for each in every_served(self._home)] if missing else []
        return {serving_name(package.model) for package in packages if missing & names_in_server(package)}

    def _note_down(self, down: dict[str, Crashed]) -> None:
        """Notes the models whose processes have ended in Triton's Python backend, and those that have them again."""
        self._note_crashed(down.values())
        for name in self._down.keys() - down.keys():
            seconds = time.time() - self._down[name].at
            incidents.note(self._home, printable(name), f"it was loaded again, and was whole after {seconds:.0f} s")
        self._down = down

    def _bound_log(self) -> None:
        log = self._home / "logs" / "triton.log"
        with contextlib.suppress(FileNotFoundError):
            if (size_mb := log.stat().st_size >> 20) >= LONGEST_LOG_MB:
                os.truncate(log, 0)  # the server appends to it
                incidents.note(self._home, "", f"Triton's log had {size_mb} MiB: it was emptied")

    def _memory_is_over(self, running: stack.Stack) -> bool:
        used_mb = server_memory.used_mb(running.processes["triton"].pid, limit=self._memory_mb)
        over = used_mb > self._memory_mb
        if over:
            limit = f"the limit is {self._memory_mb} MiB (`server.memory_mb` in {site_file.FILE})"
            self._restart(running, "", f"Triton uses {used_mb:.0f} MiB of memory, {limit}")
        return over

    def _note_stopped(self, models: dict[str, Counters]) -> None:
        now = {model: count.stopped for model, count in models.items()}
        before = now if self._stopped is None else self._stopped
        for model, stopped in now.items():
            if stopped > before.get(model, 0):
                incidents.note(self._home, model, "an execution was stopped at the time limit of a request")
        self._stopped = now

    def _note_crashed(self, crashes: Iterable[Crashed]) -> None:
        for each in crashes:
            key, now = f"{each.model}/{each.version}", (each.at, each.crashes)
            if self._crashes.get(key) != now:
                self._crashes[key] = now
                event = (
                    f"its {printable(each.part)} {printable(each.why)}, crash {each.crashes} in a row: "
                    f"it waits {each.pause_s:.0f} s"
                )
                incidents.note(self._home, printable(each.model), event)
                for package in (served.package for served in every_served(self._home)):
                    if each.model in names_in_server(package):
                        note_quarantined(self._home, package.model, package.version, each)
                        if each.crashes == QUARANTINED:
                            self._tell(EventKind.QUARANTINED, package.model, package.version, event)

    def _free(self, running: stack.Stack, stuck: dict[str, str], now: float) -> None:
        self._reloaded = {model: at for model, at in self._reloaded.items() if model in stuck}
        for model, why in stuck.items():
            if model in self._unloaded:
                continue
            if model not in self._reloaded:
                self._reloaded[model] = now
                self._reload(running, model, why)
            elif now - self._reloaded[model] > AFTER_RELOAD_S:
                self._end_stuck(running, model, f"{why}, and loading it again did not help", now)
                return

    def _end_stuck(self, running: stack.Stack, model: str, why: str, now: float) -> None:
        """Restarts the server; if the last restart was too recent, unloads only the model until the next is due."""
        if not (wait_s := self._restarts.wait_s(now)):
            self._restart_stuck(running, model, why, now)
            return
        self._unloaded.add(model)
        paused = f"the model is unloaded until Triton is restarted, in {wait_s:.0f} s"
        incidents.note(self._home, model, f"{why}, nor did restarts: {paused}")
        self._try(running, model, "unloaded", unload_stuck)

    def _hurry(self, running: stack.Stack, slow: dict[str, str], now: float) -> None:
        """Reloads a slow model, at most once an hour: it may simply get more requests than it can handle."""
        for model, why in slow.items():
            if model not in self._unloaded and now - self._hurried.get(model, -HEALTHY_S) >= HEALTHY_S:
                self._hurried[model] = now
                self._reload(running, model, why)

    def _tell_health(self) -> None:
        """Tells others of models that have gone wrong, or are right again."""
        ailing = self._prober.slow() | self._prober.failing()
        for name, why in ailing.items():
            if name not in self._ailing and (package := self._prober.package(name)):
                self._ailing[name] = (package.model, package.version)
                self._tell(EventKind.UNHEALTHY, *self._ailing[name], why)
        for name in [name for name in self._ailing if name not in ailing]:
            self._tell(EventKind.HEALTHY, *self._ailing.pop(name), "")

    def _tell(self, kind: EventKind, model: str, version: int, text: str) -> None:
        emit(self._home, model_event(kind, model, version, at=time.time(), text=text))

    def _report(self, varying: dict[str, str]) -> None:
        """Tells once of answers that vary by themselves: no restart would change them."""
        for model, why in varying.items():
            package = self._prober.package(model)
            if package and (known := (model, package.repository.sha256)) not in self._told:
                self._told.add(known)
                incidents.note(self._home, model, f"{why}; nothing is restarted for that. {_ALONE}")

    def _reload(self, running: stack.Stack, model: str, why: str) -> None:
        """Reloads a model. If it answers wrongly, its files are copied from the artifact store first."""
        incidents.note(self._home, model, f"{why}: the model is loaded again")
        package = self._prober.package(model) if model in self._prober.failing() else None
        action: Callable[[Site, Machine, str], None] = partial(reload_stuck, timeout_s=_RELOAD_S)
        if package is not None:
            healthy = package

            def action(site: Site, machine: Machine, _model: str) -> None:
                reinstall(site, machine, healthy, timeout_s=_RELOAD_S)

        self._try(running, model, "loaded again", action)

    def _try(self, running: stack.Stack, model: str, done: str, action: Callable[[Site, Machine, str], None]) -> None:
        try:
            site = stack.site(self._home, running)
            if isinstance(site.place, Machine):
                action(site, site.place, model)
        except (ShipliftError, OSError) as error:
            incidents.note(self._home, model, f"it can't be {done}: {error}")

    def _restart_stuck(self, running: stack.Stack, model: str, why: str, now: float) -> None:
        self._restarts = self._restarts.after(now)
        self._restart(running, model, why)

    def _restart(self, running: stack.Stack, model: str, why: str) -> None:
        incidents.note(self._home, model, f"{why}: Triton is restarted")
        stop(running.processes["triton"], grace_s=_END_S)


def answer_patience_s(home: Path, model: str) -> float | None:
    """How long a model may go without answering while requests wait: its time limit for a request and a margin.

    None if it has no such limit.
    """
    try:
        config = parse((home / "production" / "models" / model / "config.pbtxt").read_text())
    except (OSError, ParseError):
        return None
    text = config.parameters["request_timeout_ms"].string_value
    return int(text) / 1000 + MARGIN_S if text else None


def start_capturer(home: Path) -> "subprocess.Popen[bytes]":
    """Starts the process that writes what production captures, which ends with this one."""
    log, command = home / "logs" / "capture.log", own_module("shiplift.pipelines.daemons.capturer", "--home", home)
    return start_child(command, environment=inherited(), log=log)


def watch(home: Path) -> None:
    """Watches a home's server, and its answers, until the parent process ends."""
    prober, parent = Prober(home), os.getppid()
    watchdog = ServerWatchdog(home, prober=prober)
    threading.Thread(target=prober.run, daemon=True).start()
    threading.Thread(target=baking.run, args=(home, prober), daemon=True).start()
    threading.Thread(target=messenger.run, args=(home,), daemon=True).start()
    capturer: subprocess.Popen[bytes] | None = None
    while os.getppid() == parent:
        watchdog.look()
        if (capturer is None or capturer.poll() is not None) and captured.needed(home):
            capturer = start_capturer(home)
        time.sleep(_LOOK_S)
