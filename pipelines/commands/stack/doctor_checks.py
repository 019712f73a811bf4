"""`shiplift doctor`: what this machine has, what is missing, and how to get it."""

import importlib.metadata
import importlib.util
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Literal

from rich.table import Table
from rich.text import Text

from shiplift.pipelines.commands import console
from shiplift.pipelines.engines.local import stack
from shiplift.pipelines.settings import Settings
from shiplift.runtime.base.errors import ShipliftError
from shiplift.runtime.confinement import sandbox
from shiplift.runtime.confinement.init import advice
from shiplift.runtime.confinement.policy import WAIVABLE
from shiplift.runtime.host.processes import free_memory_mb, require_free
from shiplift.runtime.host.processor import cpu_share
from shiplift.runtime.records.base import Record
from shiplift.runtime.serving.triton.environment import ServerEnvironment, default_root, libpython, unsupported

State = Literal["ok", "warning", "missing"]
_DISK_GB, _MEMORY_GB = 3, 4
IDLE_GOAL_MB = 650
_MARKS: dict[str, tuple[str, str]] = {"ok": ("✓", "green"), "warning": ("!", "yellow"), "missing": ("✗", "red")}


class CheckResult(Record):
    """The result of one check. With `missing`, releases can't run; with `warning`, they can."""

    name: str
    state: State
    found: str
    do: str = ""


class Examination(Record):
    """The results of all checks."""

    usable: bool
    findings: tuple[CheckResult, ...]


def examine(settings: Settings) -> Examination:
    """Checks the machine; leaves nothing running."""
    findings = tuple(finding for check in _CHECKS for finding in check(settings))
    return Examination(usable=all(finding.state != "missing" for finding in findings), findings=findings)


def show(examination: Examination) -> None:
    """Prints the findings as a table."""
    table = Table(box=None, padding=(0, 2, 0, 0), show_header=False)
    for finding in examination.findings:
        mark, style = _MARKS[finding.state]
        table.add_row(Text(mark, style=style), finding.name, finding.found, Text(finding.do, style="dim"))
    console.stdout.print(table)
    console.stdout.print("this machine can run releases" if examination.usable else "something is missing; see above")


def _python(_: Settings) -> Iterator[CheckResult]:
    supported = (3, 11) <= sys.version_info[:2] < (3, 13)
    do = "" if supported else "Use Python 3.11 or 3.12: numpy < 2, which the bundled server needs, supports only these."
    yield CheckResult(name="python", state="ok" if supported else "missing", found=platform.python_version(), do=do)


def _packages(_: Settings) -> Iterator[CheckResult]:
    packages: dict[str, tuple[State, str]] = {
        "mlflow": ("missing", "pip install 'shiplift[local]'"),
        "onnxruntime": ("missing", "pip install 'shiplift[local]'"),
        "openvino": ("missing", "pip install 'shiplift[local]'"),
        "modelaudit": ("missing", "pip install 'shiplift[local]'"),
        "fastapi": ("missing", "pip install 'shiplift[local]'"),
        "torch": ("warning", "pip install 'shiplift[torch]', to release PyTorch models"),
        "skl2onnx": ("warning", "pip install 'shiplift[sklearn]', to release scikit-learn models"),
    }
    for name, (state, do) in packages.items():
        installed = importlib.util.find_spec(name) is not None
        version = importlib.metadata.version(name) if installed else "not installed"
        yield CheckResult(name=name, state="ok" if installed else state, found=version, do="" if installed else do)


def _bundled_server(settings: Settings) -> Iterator[CheckResult]:
    problem = unsupported()
    if problem:
        do = "Release on a cluster with NVIDIA's Triton image (`server: nvidia`), or run the stack on Linux x86-64."
        if libpython() is None and "libpython" in problem:
            do = f"Debian and Ubuntu: apt-get install libpython{sys.version_info.major}.{sys.version_info.minor}"
        yield CheckResult(name="bundled Triton", state="missing", found=problem, do=do)
        return
    environment = ServerEnvironment(settings.server_environment or default_root())
    if not environment.ready:
        yield CheckResult(
            name="bundled Triton", state="warning", found="not installed yet", do="`shiplift up` installs it (20 s)."
        )
        return
    for name, program in (("tritonserver", environment.tritonserver), ("perf_analyzer", environment.perf_analyzer)):
        yield _program(name, program, environment)


def _program(name: str, program: Path, environment: ServerEnvironment) -> CheckResult:
    """Whether all shared libraries of a program can be loaded."""
    if not program.is_file():
        return CheckResult(
            name=name,
            state="missing",
            found=f"{program} does not exist",
            do=f"Remove {environment.root}; `shiplift up` installs it again.",
        )
    variables = {**os.environ, "LD_LIBRARY_PATH": environment.library_path}
    libraries = subprocess.run(["ldd", str(program)], env=variables, capture_output=True, text=True, check=False).stdout  # noqa: S607
    missing = [line.split()[0] for line in libraries.splitlines() if "not found" in line]
    if missing:
        return CheckResult(
            name=name,
            state="missing",
            found=f"missing libraries: {', '.join(missing)}",
            do="Install the packages that provide these libraries.",
        )
    return CheckResult(name=name, state="ok", found=str(program))


def _sandbox(settings: Settings) -> Iterator[CheckResult]:
    """Tries each mechanism in a child process, because a process can't leave a confinement that it has entered."""
    running = stack.read(settings.root)
    accepted = (running or settings).sandbox.allow_without
    with TemporaryDirectory() as folder:
        missing = sandbox.probe(Path(folder))
    for mechanism in WAIVABLE:
        why = missing.get(mechanism, "")
        yield CheckResult(
            name=f"sandbox: {mechanism}",
            state="ok" if not why else "warning" if mechanism in accepted else "missing",
            found=f"{why} (accepted by this site)" if why and mechanism in accepted else why or "held",
            do=advice(mechanism) if why else "",
        )


def _machine(settings: Settings) -> Iterator[CheckResult]:
    folder = settings.root
    while not folder.exists():
        folder = folder.parent
    free = shutil.disk_usage(folder).free / 2**30
    yield CheckResult(
        name="disk",
        state="ok" if free >= _DISK_GB else "warning",
        found=f"{free:.0f} GiB free at {folder}",
        do="" if free >= _DISK_GB else f"Free some space: a stack and a few models need at least {_DISK_GB} GiB.",
    )
    memory = free_memory_mb() / 1024
    yield CheckResult(
        name="memory",
        state="ok" if memory >= _MEMORY_GB else "warning",
        found=f"{memory:.0f} GiB available",
        do="" if memory >= _MEMORY_GB else f"Free some memory: exporting PyTorch models needs about {_MEMORY_GB} GiB.",
    )
    there, share = os.cpu_count() or 1, cpu_share()
    yield CheckResult(
        name="processor",
        state="ok" if share >= 1 else "warning",
        found=f"{share:g} of {there} cores",
        do="" if share >= 1 else "Raise the CPU limit: with less than a core, releases and requests take long.",
    )


def _idle_memory(settings: Settings) -> Iterator[CheckResult]:
    """Where the stack's memory goes, and whether it is within the goal while nothing is released and no model served.

    A page that several processes share is divided among them (proportional set size).
    """
    running = stack.read(settings.root)
    used = stack.memory(running) if running else {}
    if not used or running is None:
        return
    total, models = sum(used.values()), stack.models_memory(running)
    parts = ", ".join(f"{name} {mb:.0f}" for name, mb in sorted(used.items(), key=lambda item: -item[1]))
    served = f" (of triton's, {models:.0f} are the processes of models)" if models else ""
    over = total - models > IDLE_GOAL_MB
    yield CheckResult(
        name="memory of the stack",
        state="warning" if over else "ok",
        found=f"{total:.0f} MiB: {parts}{served}; idle, the goal is {IDLE_GOAL_MB}",
        do="Releases under way take more. `shiplift down` and `up` give back what was not freed." if over else "",
    )


def _ports(settings: Settings) -> Iterator[CheckResult]:
    running = stack.read(settings.root)
    if running is not None and all(running.runs(name) for name in running.names):
        yield CheckResult(name="ports", state="ok", found="in use by the running stack")
        return
    parts = ("mlflow", "http", "grpc", "metrics", "receiver", "scoring", "page")
    for name in (f"{part}_port" for part in parts):
        port = getattr(running or settings, name)
        flag = f"--{name.replace('_', '-')}"
        try:
            require_free(stack.HOST, port, name, flag)
        except ShipliftError as error:
            yield CheckResult(name=flag.removeprefix("--"), state="warning", found=error.what, do=error.do)
        else:
            yield CheckResult(name=flag.removeprefix("--"), state="ok", found=f"{port} is free")


_CHECKS: tuple[Callable[[Settings], Iterator[CheckResult]], ...] = (
    _python,
    _packages,
    _bundled_server,
    _sandbox,
    _machine,
    _idle_memory,
    _ports,
)
