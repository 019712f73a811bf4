"""What a user may choose by name, as types: apart from what reads it, so that `shiplift --help` loads nothing else."""

from typing import Literal

EngineName = Literal["local", "argo"]
