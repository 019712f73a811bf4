"""The settings of a deployment: `-C name=value` on MLflow's command line, or the `config` of its client."""

from pathlib import Path
from typing import Any

from pydantic import ValidationError

from shiplift.runtime.base.errors import UsageError
from shiplift.runtime.records.base import Record


class Configuration(Record):
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


def read_configuration(config: dict[str, Any] | None) -> Configuration:
    """The settings in a `config`, whose values may be texts.

    Raises:
        UsageError: one is unknown, or has a wrong value.
    """
    try:
        return Configuration.model_validate(config or {})
    except ValidationError as error:
        first = error.errors()[0]
        raise UsageError(
            f"{'.'.join(map(str, first['loc']))}: {first['msg']}",
            do=f"Settings are {', '.join(Configuration.model_fields)}.",
        ) from error
