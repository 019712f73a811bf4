"""The process in which a model's own code runs: it confines itself, loads the model, and answers its host.

    ENVIRONMENT/bin/python -I -S -B python_host/worker.py SETTINGS-JSON

The environment is its author's: `site` would run its `.pth` files and its `sitecustomize` before any line of this file.
So Python starts without it, and this process sees the environment's packages only once it has confined itself.

The confinement is Shiplift's, which is copied as `guard`: the only part of Shiplift that guest code imports.
`served.py` beside this file answers: its `load(settings)` returns an object with `answer(arrays) -> arrays`, which also
takes the other fields of a request's message by name, if there are any. The settings are `model` (its folder), `read`
(what the process may read), `memory_mb`, `open_files` (optional), `allow_without` (mechanisms whose absence the site
accepts), `clock_step_s` (optional: by this the clock leaps ahead before each request), and whatever `served.py` needs.
Prints go to standard error, because the host uses the other pipes.

Process: the model's own process, as `python_host/worker.py` beside `wire.py`.
Python: the model's
Packages: shiplift (its confinement, in `guard`), landlockpy (in `guard`), seccompy (in `guard`), numpy
"""

import contextlib
import json
import os
import resource
import site
import sys
import tempfile
from collections.abc import Callable
from importlib import import_module
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

_HERE = Path(sys.argv[0]).parent
_HEADROOM_MB, _ADDRESSES_MB = 1024, 8192  # for libraries: private pages, and addresses that are reserved but unused
_NOT_CONFINED = 50


def main(settings: dict[str, Any]) -> None:
    """Answers requests until the host closes its pipe."""
    requests, answers = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    _confine(settings)
    tempfile.tempdir = os.environ.get(
        "TMPDIR"
    )  # libraries ask for its name when imported; nothing can be written there
    _add_packages(Path(sys.executable).parent.parent)
    package = _package()
    leap = _leaping(package, settings.get("clock_step_s"))
    # imported late: they need NumPy, which comes from the model's environment
    wire, served = import_module(f"{package}.wire"), import_module(f"{package}.served")
    model = None
    while True:
        try:
            if model is None:
                model = served.load(settings)
                message = wire.pack()
            else:
                reader = wire.Reader()
                if not _read(reader, requests):
                    return
                fields, arrays = reader.message()
                leap()
                arrays = model.answer(arrays, **fields)
                message = wire.pack(arrays, form=getattr(model, "form", None))
        except (KeyboardInterrupt, SystemExit, GeneratorExit):
            raise
        except BaseException as error:  # the model may raise anything, and libraries in Rust panic past `Exception`
            message = wire.pack(error=f"{type(error).__name__}: {' '.join(str(error).split())[:1500]}")
        answers.write(message)
        answers.flush()
        if model is None:
            return


def _package() -> str:
    """The package of the files beside this one, which no folder of the model's can hide."""
    spec = spec_from_file_location("python_host", _HERE / "__init__.py", submodule_search_locations=[str(_HERE)])
    if spec is None:
        raise ImportError(f"{_HERE} is not a package")
    sys.modules[spec.name] = module_from_spec(spec)
    return spec.name


def _leaping(package: str, step_s: int | None) -> Callable[[], None]:
    """What sets the clock ahead, if it is to leap and this Python lets it; before libraries ask for the time."""
    if step_s:
        with contextlib.suppress(Exception):
            clock = import_module(f"{package}.clock").LeapingClock(step_s)
            clock.leap()
            return clock.leap  # type: ignore[no-any-return]
    return lambda: None


def _read(reader: Any, requests: Any) -> bool:
    while reader.missing:
        data = requests.read(min(reader.missing, 1 << 20))
        if not data:
            return False
        reader.take(data)
    return True


def _add_packages(environment: Path) -> None:
    """Makes the environment's packages importable. What `.pth` files name or run is left out."""
    sys.prefix = sys.exec_prefix = str(environment)
    sys.path += [folder for folder in site.getsitepackages([str(environment)]) if Path(folder).is_dir()]
    site.setquit()
    site.sethelper()


def _confine(settings: dict[str, Any]) -> None:
    """Gives up what the model does not need, for good; ends the process if the kernel refuses, unless accepted."""
    sys.path.insert(0, str(_HERE / "guard"))
    from shiplift.runtime.confinement import kernel, landlock, seccomp  # noqa: PLC0415 - only this process needs it
    from shiplift.runtime.confinement.policy import PYTHON_MODEL  # noqa: PLC0415

    kernel.die_with_parent()
    memory = settings["memory_mb"] + _HEADROOM_MB
    for limit, value in (
        (resource.RLIMIT_DATA, memory << 20),
        (resource.RLIMIT_AS, (memory + _ADDRESSES_MB) << 20),
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_NOFILE, int(settings.get("open_files") or PYTHON_MODEL.open_files)),
    ):
        hard = resource.getrlimit(limit)[1]
        lower = value if hard == resource.RLIM_INFINITY else min(value, hard)
        resource.setrlimit(limit, (lower, lower))
    policy = PYTHON_MODEL.opening(read=tuple(settings["read"]))
    for name, restrict in (
        ("landlock", lambda: landlock.restrict(policy, own_proc=False)),
        ("seccomp", lambda: seccomp.restrict(policy, own_pids=False)),
    ):
        try:
            restrict()
        except OSError as error:
            if name not in settings["allow_without"]:
                print(f"the model's process can't be confined: {name}: {error}", file=sys.stderr, flush=True)
                os._exit(_NOT_CONFINED)
    sys.path.remove(str(_HERE / "guard"))
    for name in [name for name in sys.modules if name.partition(".")[0] in ("shiplift", "landlockpy", "seccompy")]:
        del sys.modules[name]


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
