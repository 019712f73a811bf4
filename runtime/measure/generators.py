"""The load generators by wire protocol."""

from collections.abc import Callable

from shiplift.runtime.measure.generator import LoadGenerator, WireProtocol
from shiplift.runtime.measure.perf_analyzer import PerfAnalyzer
from shiplift.runtime.records.site import Site

_FACTORIES: dict[WireProtocol, Callable[[Site], LoadGenerator]] = {"grpc": PerfAnalyzer.of, "http": PerfAnalyzer.of}


def load_generator(site: Site, protocol: WireProtocol, *, streamed: bool = False) -> LoadGenerator:
    """Returns the load generator for a wire protocol, or for streamed answers (over gRPC)."""
    if streamed:
        from shiplift.runtime.measure.streaming import StreamingClient  # noqa: PLC0415 - loads grpc, for few models

        return StreamingClient()
    return _FACTORIES[protocol](site)
