"""The command line and the environment variables with which Triton is started, on a machine and in a pod.

It runs with explicit model control (except in a pod, where the models never change), strict readiness and complete
configurations: without auto-complete a model loads in 0.15 s instead of 1.4 s. What lets a client change the server is
closed with a random key that is not kept: the shared-memory API, which names regions of memory that the server then
reads and writes, the settings of traces and logs, which name files, and over HTTP the model repository's API. Over gRPC
that API asks for a key that only its owner knows. Every account can read a command line, so this one has words in the
place of keys, which the library of `backends/requests` replaces. Should that be missing, the words are keys themselves:
random, so that a client has to read the command line.
"""

import os
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from shiplift.runtime.host.processes import inherited, total_memory_mb
from shiplift.runtime.host.processor import usable_cores
from shiplift.runtime.records.serving import ServerNeeds
from shiplift.runtime.serving.triton.environment import ServerEnvironment
from shiplift.runtime.serving.triton.repository_key import VARIABLE

_EXIT_S = 20
_LOADS = 32  # at a time: threads, most of which wait for a model's own process
HTTP_THREADS = 8  # Triton's default
CLOSED = "shared-memory,trace,logging"
_NOT_KEPT, _OWNERS = "not-kept-", "owners-"  # words for keys begin so, as `backends/requests` knows them


@dataclass(frozen=True, kw_only=True)
class Ports:
    """Where a server listens."""

    http: int
    grpc: int
    metrics: int
    host: str = "127.0.0.1"


@dataclass(frozen=True, kw_only=True)
class Features:
    """What a server is started with besides its models. The rate limiter costs about a tenth of the throughput.

    `http_threads` is the number of threads that read and answer HTTP; 0 means one per core, up to Triton's default of
    8. On two cores with 64 connections, eight of them cost a quarter more CPU time per request than two.
    `allow_without` are the mechanisms of confinement whose absence the site accepts. `tolerant`: the server serves even
    if a model can't be loaded. `captures`: requests of its models can be captured. `memory_mb` is what the
    server and its models' processes may use together, in MiB (0: three quarters of the machine's memory); from two
    thirds of it in the server alone, clients that send much are refused. `flags` are more of Triton's own.
    """

    cache_mb: int = 16
    rate_limiter: bool = False
    http_threads: int = 0
    allow_without: tuple[str, ...] = ()
    tolerant: bool = False
    captures: bool = False
    memory_mb: int = 0
    flags: tuple[str, ...] = ()


def command(
    environment: ServerEnvironment,
    repository: Path,
    ports: Ports,
    features: Features,
    *,
    control: Literal["explicit", "none"] = "explicit",
) -> list[str | Path]:
    """The bundled server's command line.

    With `control` "none" it serves all of its repository, which can't be changed. Otherwise only holders of the key in
    its `variables` can load and unload models.
    """
    not_kept, owners = (word + secrets.token_hex(16) for word in (_NOT_KEPT, _OWNERS))
    return [
        environment.tritonserver,
        *_flags(repository, ports, features, control),
        *features.flags,
        f"--model-load-thread-count={_LOADS}",
        f"--backend-directory={environment.backends}",
        f"--cache-directory={environment.caches}",
        f"--http-thread-count={features.http_threads or min(usable_cores(), HTTP_THREADS)}",
        "--allow-gpu-metrics=false",
        "--grpc-infer-allocation-pool-size=0",  # each of the eight kept would hold the memory of its largest request
        f"--http-restricted-api=model-repository,{CLOSED}:shiplift={not_kept}",
        f"--grpc-restricted-protocol={CLOSED}:shiplift={not_kept}",
        *([f"--grpc-restricted-protocol=model-repository:shiplift={owners}"] if control == "explicit" else []),
    ]


def nvidia_command(repository: Path, ports: Ports, needs: ServerNeeds, *, load: Sequence[str]) -> list[str]:
    """The command line of the server in NVIDIA's image, which loads these models.

    `runtime.guest.pod.guard` starts it, and closes the APIs that could load others.
    """
    features = Features(rate_limiter=needs.rate_limiter)
    loaded = [f"--load-model={model}" for model in load]
    return ["tritonserver", *_flags(repository, ports, features, "explicit"), *loaded, *needs.flags]


def _flags(repository: Path, ports: Ports, features: Features, control: str) -> list[str]:
    """The flags that both servers are started with."""
    flags = [
        f"--model-repository={repository}",
        f"--model-control-mode={control}",
        "--disable-auto-complete-config",  # formerly --strict-model-config
        f"--strict-readiness={'false' if features.tolerant else 'true'}",
        *(["--exit-on-error=false"] if features.tolerant else []),
        f"--exit-timeout-secs={_EXIT_S}",
        f"--http-address={ports.host}",
        f"--grpc-address={ports.host}",
        f"--metrics-address={ports.host}",
        f"--http-port={ports.http}",
        f"--grpc-port={ports.grpc}",
        f"--metrics-port={ports.metrics}",
        "--metrics-config=summary_latencies=true",  # p50 and p99 of the last minute, for dashboards and alerts
        f"--rate-limit={'execution_count' if features.rate_limiter else 'off'}",
    ]
    return [*flags, f"--cache-config=local,size={features.cache_mb << 20}"] if features.cache_mb else flags


def variables(
    environment: ServerEnvironment, features: Features | None = None, *, repository_key: str = ""
) -> dict[str, str]:
    """The server's environment variables. Without a `repository_key`, nobody can load and unload models.

    The Python backend's interpreter finds its library through the first `python3` on PATH. If a user has activated a
    virtual environment, that is one that the confined server may not read, so the server's own folder comes first.
    """
    own = str(environment.root / "bin")
    features = features or Features()
    captures = [environment.capture_library] if features.captures else []
    preloaded = [environment.requests_library, *captures]
    return {
        **inherited(("LANG", "TZ")),
        "PATH": os.pathsep.join((own, os.environ.get("PATH", os.defpath))),
        **dict.fromkeys(("HOME", "TMPDIR"), "/tmp"),  # noqa: S108 - its own
        "PYTHONDONTWRITEBYTECODE": "1",
        "LD_LIBRARY_PATH": environment.library_path,
        "SHIPLIFT_SERVER_SITE": str(environment.site),
        "SHIPLIFT_ENVIRONMENTS": str(environment.environments),
        "SHIPLIFT_ALLOW_WITHOUT": " ".join(features.allow_without),
        "OMP_NUM_THREADS": "1",
        "SHIPLIFT_SERVER_MEMORY_MB": str(features.memory_mb * 2 // 3 or total_memory_mb() // 2),  # the server alone
        "LD_PRELOAD": os.pathsep.join(map(str, preloaded)),
        **({VARIABLE: repository_key} if repository_key else {}),
    }
