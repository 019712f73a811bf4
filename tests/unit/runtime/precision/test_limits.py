import pytest

from shiplift.runtime.precision import limits
from shiplift.runtime.precision.limits import limits_of
from shiplift.runtime.records.site import SitePolicy
from shiplift.runtime.spec.model import Quantization


@pytest.mark.parametrize(
    ("free_mb", "memory_mb", "advice"),
    [(64_000, 16_384, "Raise `quantization.memory_mb` in the spec"), (4000, 4000, "Free memory on this machine")],
)
def test_memory_is_limited_by_the_spec_or_else_by_the_machine(
    monkeypatch: pytest.MonkeyPatch, free_mb: int, memory_mb: int, advice: str
) -> None:
    monkeypatch.setattr(limits, "free_memory_mb", lambda: free_mb)
    limit = limits_of(Quantization(), "scoring", SitePolicy())
    assert limit.memory_mb == memory_mb
    assert advice in limit.exceeded("memory_mb", "used more").do
    assert "Raise `quantization.timeout_s`" in limit.exceeded("timeout_s", "took long").do


def test_a_default_is_capped_by_the_site_s_policy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "free_memory_mb", lambda: 64_000)
    limit = limits_of(Quantization(), "scoring", SitePolicy(memory_mb=2048, timeout_s=60))
    assert (limit.memory_mb, limit.timeout_s) == (2048, 60)
