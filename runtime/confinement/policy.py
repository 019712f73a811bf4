"""What a confined process may do: one policy per use, and the limits of one run.

A policy is plain data that survives JSON: it is sent to a process that has not imported anything yet.
"""

import json
from dataclasses import asdict, dataclass, replace
from typing import Any, Self

from shiplift.runtime.base.errors import SandboxLimit

WAIVABLE = ("namespaces", "landlock", "seccomp")
SYSTEM = ("/usr", "/lib", "/lib64", "/bin", "/etc/ld.so.cache", "/etc/localtime", "/etc/mime.types", "/sys")


@dataclass(frozen=True, kw_only=True)
class ConfinementPolicy:
    """What one use of confinement allows; everything else is refused.

    `read` and `write` are files or folders, in addition to the system's libraries. `hostile_code`: the model's author
    wrote the code, so none of its reports is trusted. `ports` are the TCP ports that a process with `network` may
    listen on and, if it `connects`, connect to. Without `network` it has no interface at all. `resolves`: it may also
    send datagrams, for DNS. `programs`: it may start other programs and processes, otherwise only threads. `confines`:
    the processes that it starts may confine themselves further. `tasks` counts processes and threads together.
    `work_mb` and `work_files` limit what it keeps below `write`. `shared_memory_mb` is the size of a private /dev/shm,
    0 for none, and `temporary_mb` that of a private /tmp, which still shows the paths of `read` and `write`.
    `allow_without` names the mechanisms, of `WAIVABLE`, whose absence the site accepts.
    """

    name: str
    read: tuple[str, ...] = ()
    write: tuple[str, ...] = ()
    hostile_code: bool = False
    programs: bool = True
    network: bool = False
    connects: bool = True
    resolves: bool = False
    ports: tuple[int, ...] = ()
    gpu: bool = False
    confines: bool = False
    tasks: int = 1024
    open_files: int = 4096
    work_mb: int = 65536
    work_files: int = 100_000
    shared_memory_mb: int = 0
    temporary_mb: int = 0
    ends_with_parent: bool = True
    allow_without: tuple[str, ...] = ()

    def to_json(self) -> str:
        """The policy as JSON."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Reads a policy from its JSON.

        Raises:
            TypeError, ValueError: the text is not a policy.
        """
        fields: dict[str, Any] = json.loads(text)
        values: dict[str, Any] = {
            name: tuple(value) if isinstance(value, list) else value for name, value in fields.items()
        }
        return cls(**values)

    def opening(self, *, read: tuple[str, ...] = (), write: tuple[str, ...] = ()) -> Self:
        """This policy with more paths."""
        return replace(self, read=(*self.read, *read), write=(*self.write, *write))


PARSE = ConfinementPolicy(name="parse", programs=False, tasks=256, open_files=256, work_mb=1024, work_files=1000)
SCAN = ConfinementPolicy(name="scan", work_mb=4096)
CONVERT = ConfinementPolicy(name="convert", hostile_code=True)
QUANTIZE = ConfinementPolicy(name="quantize", gpu=True)
QUANTIZE_WITH_METRIC = ConfinementPolicy(name="quantize with the author's metric", hostile_code=True, gpu=True)
EVALUATE = ConfinementPolicy(name="evaluate", gpu=True)
PYTHON_SERVICE = ConfinementPolicy(
    name="python service", hostile_code=True, network=True, tasks=4096, open_files=16384, shared_memory_mb=1024
)
# Triton's Python backend makes a folder in /tmp, whatever TMPDIR says.
TRITON = ConfinementPolicy(
    name="triton",
    network=True,
    connects=False,
    gpu=True,
    tasks=16384,
    open_files=65536,
    shared_memory_mb=4096,
    temporary_mb=1024,
    ends_with_parent=False,
    confines=True,
)
# A Python model, wherever it runs: its host is in a sandbox or in Triton, and starts the model as a process that
# confines itself further before it loads anything.
PYTHON_HOST = ConfinementPolicy(name="python host", hostile_code=True, confines=True)
PYTHON_MODEL = ConfinementPolicy(name="python model", hostile_code=True, programs=False, open_files=256)
# Starts pip, which then gives up starting anything else (`alone.py`).
INSTALL = ConfinementPolicy(name="install packages", network=True, resolves=True, confines=True)


@dataclass(frozen=True)
class Entry:
    """What to run in a sandbox, as `module:function`, and the policy it runs under.

    The entry is named rather than imported, because its module loads what only the child should load.
    """

    function: str
    policy: ConfinementPolicy = CONVERT


@dataclass(frozen=True, kw_only=True)
class SandboxLimits:
    """What one run may use: resident memory in MiB, wall-clock and CPU seconds, and the size of a file in MiB.

    `answer_s` is the wall-clock time for one answer of a model that the run asks (`base.patience`).
    `task`, `settings` and `all_memory` are for the error message: what exceeded the limit, the spec's section that sets
    it (empty: none), and whether `memory_mb` is below the spec's value because this machine has no more.
    """

    memory_mb: int
    timeout_s: int
    file_mb: int = 65536
    answer_s: float = 120
    task: str = "loading or converting the model"
    settings: str = "export"
    all_memory: bool = False

    def exceeded(self, limit: str, usage: str) -> SandboxLimit:
        """The error for exceeding `memory_mb` or `timeout_s` (empty: a limit that the spec does not set) by `usage`."""
        if self.all_memory and limit == "memory_mb":
            return SandboxLimit(f"{self.task} {usage}", do="Free memory on this machine, or make the model smaller.")
        advice = f"Raise `{self.settings}.{limit}` in the spec, or make" if self.settings and limit else "Make"
        better = "simpler" if limit == "timeout_s" else "smaller"
        return SandboxLimit(f"{self.task} {usage}", do=f"{advice} the model {better}.")
