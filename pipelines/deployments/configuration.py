"""The settings of a deployment: `-C name=value` on MLflow's command line, or the `config` of its client."""

from pathlib import Path
from typing import Any, TypeVar

from pydantic import Field, ValidationError

from shiplift.runtime.base.errors import UsageError
from shiplift.runtime.records.base import Record


class DeploymentConfiguration(Record):
    """How a version is released. `spec` is the path of a release spec; empty: the one that was logged with the version.

    `again`: even if its release ended before. `allow_older`: even if a newer version serves. Without `wait`, the
    release goes on by itself.
    """

    spec: str = ""
    again: bool = False
    allow_older: bool = False
    wait: bool = True

    def spec_text(self) -> str:
        """The content of the spec's file.

        Raises:
            UsageError: it can't be read.
        """
        try:
            return Path(self.spec).read_text() if self.spec else ""
        except (OSError, ValueError) as error:
            raise UsageError(f"spec={self.spec}: {error}", do="Name a file with a release spec.") from error


class RetirementConfiguration(Record):
    """How a model is retired: why, and with `force` even if it is in use."""

    reason: str = Field("deleted as an MLflow deployment", max_length=500)
    force: bool = False


C = TypeVar("C", bound=Record)


def read_configuration(config: dict[str, Any] | None) -> DeploymentConfiguration:
    """The settings of a release in a `config`, whose values may be texts.

    Raises:
        UsageError: one is unknown, or has a wrong value.
    """
    return _read(DeploymentConfiguration, config)


def read_retirement(config: dict[str, Any] | None) -> RetirementConfiguration:
    """The settings of a deletion in a `config`. Raises what `read_configuration` raises."""
    return _read(RetirementConfiguration, config)


def _read(kind: type[C], config: dict[str, Any] | None) -> C:
    try:
        return kind.model_validate(config or {})
    except ValidationError as error:
        first = error.errors()[0]
        raise UsageError(
            f"{'.'.join(map(str, first['loc']))}: {first['msg']}",
            do=f"Settings are {', '.join(kind.model_fields)}.",
        ) from error
