"""Serves a package for scoring alone: on a private server with its own configuration, so that answers are production's.

The engine is not called directly: guards, fronts, padding and batching are the server's, and so would be twins here.
"""

import math
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from shiplift.runtime.model.tensors import numpy_type
from shiplift.runtime.records.kinds.package import Package
from shiplift.runtime.records.site import Site
from shiplift.runtime.search.bench import start_bench
from shiplift.runtime.search.space import Point
from shiplift.runtime.serving.discovery import ServedModel
from shiplift.runtime.spec.serving_settings import Serving

_SMALL, _REQUEST_BYTES = 32, 256 << 10


def batch_of(package: Package, wanted: int) -> int:
    """How many rows a request has: those that are `wanted`, or (0) those that the package was tuned for.

    A package that was tuned for fewer gets as many small rows as keep the cost of a request below that of its rows.
    Large rows, and texts of whose size nothing is known, may need too much memory for that.
    """
    signature = package.signature
    if signature.batch != -1:
        return package.config.max_batch
    sizes = [math.prod(spec.shape[1:]) * numpy_type(spec.datatype).itemsize for spec in signature.inputs]
    known = all(spec.datatype != "BYTES" and min(spec.shape[1:], default=1) > 0 for spec in signature.inputs)
    small = min(_SMALL, _REQUEST_BYTES // max(1, sum(sizes))) if known else 1
    return wanted or max(package.config.max_batch, small)


@contextmanager
def privately_served(site: Site, package: Package, batch: int, folder: Path) -> Iterator[ServedModel]:
    """A package on a server that nobody else asks, as long as the context lasts.

    A request may have `batch` rows.

    Raises:
        MissingTool: this place can't run the package's server.
        ServerFailed: it did not start, or can't load the package.
        ArtifactCorrupt: the package is no longer stored, as after its retirement.
    """
    config = package.config.model_copy(update={"max_batch": batch})
    with start_bench(site, (package,), Serving(), folder) as bench:
        name = bench.serve(Point(package, config))
        yield ServedModel(
            model=package.model,
            name=name,
            version=package.version,
            grpc=bench.address("grpc"),
            http=f"http://{bench.address('http')}",
            signature=package.signature,
            scoring=package.scoring,
        )
