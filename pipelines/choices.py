"""The names that a user can choose from, as types, in a module of their own so that `shiplift --help` loads no more."""

from typing import Literal

EngineName = Literal["local", "argo"]
