"""The section `promotion` of the spec: who has to agree before a version is promoted."""

from typing import Literal

from pydantic import Field

from shiplift.runtime.spec.fields import Section


class Promoting(Section):
    """Whether a version that passed every check waits for a person's approval, and for how many hours at most.

    Nothing is held meanwhile: the release ends, and `shiplift approve` continues it from its kept results.
    """

    approval: Literal["none", "required"] = "none"
    deadline_h: float = Field(72, gt=0, le=8760)
