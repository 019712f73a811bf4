"""What one served model may use of the machine that it shares with others."""

from pydantic import Field

from shiplift.runtime.records.base import Record

_UNITS = {
    "memory_mb": "{} MiB of memory",
    "cpu_s": "{:g} s of CPU time per execution",
    "load_s": "{:g} s to load",
    "threads": "{} threads",
    "open_files": "{} open files",
    "temporary_mb": "{} MiB of temporary files",
}


class Limits(Record):
    """What a served model may use. None: its server's own default applies.

    Loading may take `load_s`, and one execution `cpu_s`, of all its threads together. `memory_mb` (MiB), `threads` and
    `open_files` are those of each of its processes. `temporary_mb` (MiB) is what it may keep in files.
    """

    load_s: float | None = Field(None, ge=1, le=3600)
    memory_mb: int | None = Field(None, ge=64, le=4_194_304, strict=True)
    cpu_s: float | None = Field(None, ge=0.1, le=86_400)
    threads: int | None = Field(None, ge=8, le=4096, strict=True)
    open_files: int | None = Field(None, ge=64, le=65_536, strict=True)
    temporary_mb: int | None = Field(None, ge=1, le=1_048_576, strict=True)

    def within(self, highest: "Limits") -> "Limits":
        """These limits, each at most as high as in `highest`."""
        pairs = {name: (getattr(self, name), getattr(highest, name)) for name in Limits.model_fields}
        said = {name: [value for value in pair if value is not None] for name, pair in pairs.items()}
        return Limits(**{name: min(values) for name, values in said.items() if values})

    def __str__(self) -> str:
        """Those that are set, for people."""
        values = {name: getattr(self, name) for name in _UNITS}
        return ", ".join(_UNITS[name].format(value) for name, value in values.items() if value is not None)
