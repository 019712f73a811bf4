"""What a model may use by default, from what tuning measured."""

from shiplift.runtime.records.limits import Limits
from shiplift.runtime.records.tensor import Signature
from shiplift.runtime.search.limits import tuned_limits
from tests.unit.examples import package, tensor


def test_memory_is_twice_the_peak_unless_the_spec_says_or_the_site_allows_less() -> None:
    for given, asked, peak, memory in (
        (Limits(), Limits(), 700.4, 1401),
        (Limits(), Limits(), 90.0, 1024),
        (Limits(), Limits(), 0.0, None),  # nothing was measured
        (Limits(memory_mb=300), Limits(memory_mb=300), 700.0, 300),
        (Limits(memory_mb=1200), Limits(), 700.0, 1200),  # the site's
        (Limits(memory_mb=5000), Limits(), 700.0, 1400),
    ):
        assert tuned_limits(package(limits=given), asked, peak).memory_mb == memory


def test_no_limit_is_told_that_no_server_enforces() -> None:
    assert tuned_limits(package(server="nvidia"), Limits(), 700.0) == Limits()


def test_a_model_that_generates_text_has_a_limit_as_any_other() -> None:
    streamed = Signature(inputs=(tensor("text", -1, datatype="BYTES"),), outputs=(tensor("y", -1),), streamed=True)
    assert tuned_limits(package(signature=streamed), Limits(), 700.0) == Limits(memory_mb=1400)
