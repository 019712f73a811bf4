"""Reads the samples on a Prometheus page that belong to one of Triton's models."""

import re
from collections.abc import Iterator

_SAMPLE = re.compile(r"^(\w+)\{([^}]*)\} (\S+)$", re.MULTILINE)


def samples_of(page: str, model: str) -> Iterator[tuple[str, str, float]]:
    """The name, the labels as written, and the value of each sample with the label `model`."""
    for name, labels, value in _SAMPLE.findall(page):
        if f'model="{model}"' in labels:
            yield name, labels, float(value)
