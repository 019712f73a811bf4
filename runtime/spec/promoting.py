"""The section `promotion` of the spec: who has to agree before a version is promoted, and how it is watched after."""

from typing import Literal

from pydantic import Field

from shiplift.runtime.spec.baking import Bake
from shiplift.runtime.spec.fields import Section


class Promoting(Section):
    """Whether a version that passed every check waits for a person's approval, and for how many hours at most.

    Nothing is held meanwhile: the release ends, and `shiplift approve` continues it from its kept results. With `bake`,
    the promoted version is watched, and rolled back by itself if an alarm is raised.
    """

    approval: Literal["none", "required"] = "none"
    deadline_h: float = Field(72, gt=0, le=8760)
    bake: Bake | None = None
