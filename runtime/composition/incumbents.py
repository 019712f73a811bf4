"""What production serves when a release begins: the champion to compare with, and a pipeline's members."""

from pydantic import Field

from shiplift.runtime.composition.checked import Unusable
from shiplift.runtime.records.base import Record, Sections
from shiplift.runtime.records.kinds.package import Package
from shiplift.runtime.records.promotion import Champion


class Members(Record):
    """A pipeline's members as they were promoted, by its names for them, and why the others can't be members.

    Both are empty if the version is not a pipeline.
    """

    packages: dict[str, Package] = Field(default_factory=dict)
    unusable: dict[str, Unusable] = Field(default_factory=dict)


class Incumbents(Sections):
    """What a release finds in production."""

    champion: Champion
    members: Members
