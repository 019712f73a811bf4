"""What is around a graph, by the file that says how: `text.json` for texts, `image.json` for images."""

from pathlib import Path
from typing import Any

_IMAGE = "image.json"


def takes_images(folder: Path) -> bool:
    """Whether a front's folder is that of a model that takes images."""
    return (folder / _IMAGE).is_file()


def load_front(folder: Path) -> tuple[Any, type[ValueError]]:
    """The front in a folder, and the error for what its model can't take."""
    if takes_images(folder):
        from shiplift.runtime.model.text import image_front  # noqa: PLC0415 - needs an extra

        return image_front.ImageFront(folder), image_front.BadImage
    from shiplift.runtime.model.text import text_front  # noqa: PLC0415 - needs an extra

    return text_front.TextFront(folder), text_front.BadText
