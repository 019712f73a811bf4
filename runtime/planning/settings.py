"""How one member is served, as the simulation and a plan see it."""

from functools import cached_property

from pydantic import Field

from shiplift.runtime.planning.profiles import MemberConfiguration
from shiplift.runtime.records.base import Record
from shiplift.runtime.records.serving import ServingConfig


class MemberSettings(Record):
    """A member's serving configuration, with the measured configuration that it is based on."""

    configuration: MemberConfiguration
    max_batch: int = Field(ge=1)
    queue_delay_us: int = Field(0, ge=0)
    instances: int = Field(ge=1)

    @property
    def serving(self) -> ServingConfig:
        """The same as a package's configuration."""
        return ServingConfig(
            max_batch=self.max_batch,
            queue_delay_us=self.queue_delay_us,
            instances=self.instances,
            threads=self.configuration.threads,
        )

    @property
    def cores(self) -> float:
        """The cores of all instances."""
        return self.instances * self.configuration.instance_cores

    @property
    def memory_mb(self) -> float:
        """The memory of all instances."""
        return self.configuration.memory_of(self.instances)

    @property
    def cost(self) -> tuple[float, float]:
        """Cores, then memory."""
        return round(self.cores, 6), round(self.memory_mb, 3)

    @cached_property
    def seconds(self) -> list[float]:
        """The mean execution time in s of each batch size, from 0 to `max_batch`."""
        return self.configuration.seconds(self.max_batch)

    @property
    def rows_per_s(self) -> float:
        """How many rows the instances can complete at most, if there is always work."""
        return self.instances * max(rows / self.seconds[rows] for rows in range(1, self.max_batch + 1))
