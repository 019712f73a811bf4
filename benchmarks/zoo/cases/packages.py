"""Packages that the zoo needs in addition to Shiplift's: architectures and real weights, fetched on first use."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from benchmarks.extras import extras


def packages() -> Path:
    """The folder with the packages of `rivals/zoo.txt`.

    Raises:
        Missing: pip can't install them.
    """
    return extras("zoo.txt", lambda message: print(message, file=sys.stderr, flush=True))


@contextmanager
def torchvision() -> Iterator[Any]:
    """torchvision's models, while the context lasts.

    Its wheel is built for torch with CUDA. Beside torch for CPUs its operators don't load, which its import expects, so
    those that it looks for are declared. It is hidden afterwards, since transformers would use it for image processing.
    """
    import torch

    library = torch.library.Library("torchvision", "FRAGMENT")
    for operator in ("nms", "qnms"):
        library.define(f"{operator}(Tensor boxes, Tensor scores, float threshold) -> Tensor")
    sys.path.insert(0, str(packages()))
    try:
        import torchvision.models

        yield torchvision.models
    finally:
        sys.path.remove(str(packages()))
        for name in [name for name in sys.modules if name.split(".")[0] == "torchvision"]:
            del sys.modules[name]
        library._destroy()
