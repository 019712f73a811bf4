"""Configuration, resolved once at the edge: command-line flags, then SHIPLIFT_* variables, then defaults."""

from pathlib import Path
from typing import Any

from pydantic import Field, ValidationError
from pydantic_settings import BaseSettings, SettingsConfigDict

from shiplift.pipelines.choices import EngineName
from shiplift.runtime.base.errors import UsageError
from shiplift.runtime.records.site import SandboxSettings
from shiplift.runtime.spec.serving_settings import Metrics

Port = int


class Settings(BaseSettings):
    """A stack's home and its ports. Ports apply to a new stack: an existing one keeps those it has.

    `sandbox` says which mechanisms of confinement may be missing on this machine. `warm_minutes` says how long after a
    release a process waits for the next one, with its packages loaded. Both apply to an existing stack too.
    """

    model_config = SettingsConfigDict(env_prefix="SHIPLIFT_", frozen=True, extra="ignore")

    home: Path = Path(".shiplift")
    mlflow_port: Port = Field(5000, ge=1, le=65535)
    receiver_port: Port = Field(8090, ge=1, le=65535)
    http_port: Port = Field(8000, ge=1, le=65535)
    grpc_port: Port = Field(8001, ge=1, le=65535)
    metrics_port: Port = Field(8002, ge=1, le=65535)
    scoring_port: Port = Field(8005, ge=1, le=65535)
    page_port: Port = Field(8007, ge=1, le=65535)
    free_ports: bool = False
    registry_uri: str = ""
    server_environment: Path | None = None
    cache_mb: int = Field(64, ge=0, le=65536)
    rate_limiter: bool = False
    metrics: Metrics = Metrics()
    sweep_s: float = Field(60, ge=1)
    engine: EngineName = "local"
    namespace: str = "shiplift"
    sandbox: SandboxSettings = SandboxSettings()
    warm_minutes: float = Field(60, ge=0)

    @property
    def root(self) -> Path:
        """The home folder as an absolute path."""
        return self.home.expanduser().absolute()


def resolved(**options: Any) -> Settings:
    """The settings: options first, then environment variables, then defaults. An option that is None is not given.

    Raises:
        UsageError: an option or a variable has an invalid value.
    """
    try:
        return Settings(**{name: value for name, value in options.items() if value is not None})
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        raise UsageError(f"SHIPLIFT_{where.upper()}: {first['msg']}", do="Change or unset it.") from error
