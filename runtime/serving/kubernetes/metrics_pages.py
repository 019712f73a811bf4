"""The metrics of servers in pods, read from many at once: one that does not answer holds no other up."""

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor

import httpx

from shiplift.runtime.base.plain_http import NO_AUTHORITIES
from shiplift.runtime.serving.kubernetes.objects.names import METRICS

_THREADS = 8


def metrics_pages(addresses: Mapping[str, str], timeout_s: float) -> dict[str, str]:
    """The pages of those that answer in time, of all these addresses (in the form for URLs) by name."""
    with (
        httpx.Client(timeout=timeout_s, trust_env=False, verify=NO_AUTHORITIES) as client,
        ThreadPoolExecutor(_THREADS) as pool,
    ):

        def page(address: str) -> str:
            try:
                return client.get(f"http://{address}:{METRICS}/metrics").raise_for_status().text
            except httpx.HTTPError:
                return ""

        pages = pool.map(page, addresses.values())
        return {name: text for name, text in zip(addresses, pages, strict=True) if text}
