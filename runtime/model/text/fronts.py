"""The front around a graph, by its settings' file: `text.json` for texts, `image.json`, `pixels.json` for images."""

from pathlib import Path
from typing import Any

_IMAGE, _PIXELS = "image.json", "pixels.json"


def takes_images(folder: Path) -> bool:
    """Whether a front's folder belongs to a model that takes images."""
    return (folder / _IMAGE).is_file() or takes_pixels(folder)


def takes_pixels(folder: Path) -> bool:
    """Whether a front's folder belongs to a model of pixels, behind the decoding that its spec asks for."""
    return (folder / _PIXELS).is_file()


def front_file(folder: Path) -> str:
    """The name of the module with the code around a graph."""
    if takes_pixels(folder):
        return "pixel_front.py"
    return "image_front.py" if takes_images(folder) else "text_front.py"


def load_front(folder: Path) -> tuple[Any, type[ValueError]]:
    """The front in a folder, and the error that it raises for requests that its model can't take."""
    if takes_pixels(folder):
        from shiplift.runtime.guest.fronts import encoded, pixel_front  # noqa: PLC0415 - needs an extra

        return pixel_front.PixelFront(folder), encoded.BadImage
    if takes_images(folder):
        from shiplift.runtime.guest.fronts import encoded, image_front  # noqa: PLC0415 - needs an extra

        return image_front.ImageFront(folder), encoded.BadImage
    from shiplift.runtime.guest.fronts import text_front  # noqa: PLC0415 - needs an extra

    return text_front.TextFront(folder), text_front.BadText
