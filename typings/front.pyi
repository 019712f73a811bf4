"""One of the fronts, as it is called in packages; the package's kind says which, and so which of these names it has."""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from shiplift.runtime.guest.fronts.pixel_front import decoded as decoded
from shiplift.runtime.guest.fronts.pixel_front import normalized as normalized
from shiplift.runtime.guest.generation.front import Ask as Ask
from shiplift.runtime.guest.generation.front import BadRequest as BadRequest
from shiplift.runtime.guest.generation.front import GenerationFront as GenerationFront
from shiplift.runtime.guest.generation.front import Pieces as Pieces
from shiplift.runtime.guest.generation.front import conversation as conversation
from shiplift.runtime.guest.generation.front import text_in as text_in

class Refused(ValueError): ...

class Front:
    """What the fronts of texts, images and pixels have."""

    def __init__(self, folder: Path) -> None: ...
    def samples(self, inputs: Mapping[str, Any]) -> list[Any]: ...
    def read(self, samples: Sequence[Any]) -> list[Any]: ...
    def encode(self, texts: Sequence[Any]) -> list[Any]: ...
    def feeds(self, encodings: Sequence[Any], length: int = ...) -> dict[str, Any]: ...
    def split(self, requests: Sequence[tuple[Any, Any]], outputs: Mapping[str, Any]) -> Iterable[dict[str, Any]]: ...
