"""The section `promotion` of the spec: how a version is tried, who has to agree, and how it is watched after."""

from typing import Literal

from pydantic import Field

from shiplift.runtime.spec.baking import Bake
from shiplift.runtime.spec.fields import Section
from shiplift.runtime.spec.shadowing import Shadow


class Promoting(Section):
    """Whether a version that passed every check waits for a person's approval, and for how many hours at most.

    Nothing is held meanwhile: the release ends, and `shiplift approve` continues it from its kept results. With `bake`,
    the promoted version is watched, and rolled back by itself if an alarm is raised. With `shadow`, it answers copies
    of real requests before all that.
    """

    approval: Literal["none", "required"] = "none"
    deadline_h: float = Field(72, gt=0, le=8760)
    shadow: Shadow | None = None
    bake: Bake | None = None
