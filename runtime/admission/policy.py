"""The site's policy limits every spec: a version's author writes the spec, the site's owner writes the policy."""

import math
from collections.abc import Iterator
from pathlib import Path

from shiplift.runtime.base.errors import NotAdmitted, PolicyRefused
from shiplift.runtime.base.files import Irregular, regular_files
from shiplift.runtime.records.limits import Limits
from shiplift.runtime.records.site import Site, SitePolicy
from shiplift.runtime.spec.document import ReleaseSpec
from shiplift.runtime.spec.serving_settings import Metrics


def check(policy: SitePolicy, spec: ReleaseSpec) -> None:
    """Checks that a spec stays within a site's policy.

    Raises:
        PolicyRefused: it does not; the message names each value and its limit.
    """
    if beyond := [*_modes(policy, spec), *_numbers(policy, spec)]:
        lines = " and ".join(dict.fromkeys(f"`{line}`" for _, line in beyond if line))
        raise PolicyRefused(
            f"the spec asks for more than this site allows: {'; '.join(what for what, _ in beyond)}",
            do=f"{f'Write {lines} in the spec' if lines else 'Change the spec'}, or ask the owner of this site to "
            "change its `policy` (site.yaml, or the values file).",
        )


_Beyond = tuple[str, str]  # what the spec asks for, and the line of a spec that the site allows


def _modes(policy: SitePolicy, spec: ReleaseSpec) -> Iterator[_Beyond]:
    for name in ("pickle", "python"):
        mode, modes = getattr(spec.admission, name), getattr(policy, name)
        if mode not in modes:
            line = f"admission: {{{name}: {modes[0]}}}" if modes else ""
            yield f"admission.{name} is {mode!r}, `policy.{name}` allows {' or '.join(modes) or 'none'}", line


_LIMITED = (
    ("admission", "max_size_mb", "max_size_mb"),
    ("export", "memory_mb", "memory_mb"),
    ("export", "timeout_s", "timeout_s"),
    ("quantization", "memory_mb", "memory_mb"),
    ("quantization", "timeout_s", "timeout_s"),
    ("serving", "request_timeout_s", "timeout_s"),
    ("data", "min_samples", "samples"),
    ("data", "calibration_samples", "samples"),
)


def _numbers(policy: SitePolicy, spec: ReleaseSpec) -> Iterator[_Beyond]:
    """The author's values beyond the policy. A default is not a request: where it is used, the policy caps it."""
    for section, field, name in _LIMITED:
        part = getattr(spec, section)
        value, limit = getattr(part, field), getattr(policy, name)
        if field in part.model_fields_set and value > limit:
            line = f"{section}: {{{field}: {limit}}}"
            yield f"{section}.{field} is {value:g}, the limit is {limit:g} (`policy.{name}`)", line
    for field in Limits.model_fields:
        value, limit = getattr(spec.serving.limits, field), getattr(policy.served, field)
        if value is not None and limit is not None and value > limit:
            line = f"serving: {{limits: {{{field}: {limit}}}}}"
            yield f"serving.limits.{field} is {value:g}, the limit is {limit:g} (`policy.served.{field}`)", line
    if len(spec.targets) > policy.targets:
        yield f"the number of targets is {len(spec.targets)}, the limit is {policy.targets} (`policy.targets`)", ""


def check_site(site: Site, spec: ReleaseSpec) -> None:
    """Checks that a spec stays within a site's policy, and asks for nothing that its place can't give.

    Raises:
        PolicyRefused: the spec does not stay within the policy.
        NotAdmitted: production runs without something that it asks for.
    """
    check(site.policy, spec)
    if spec.serving.rate_limiter and not site.place.rate_limiter:
        raise NotAdmitted(
            "the spec asks for `serving.rate_limiter`, but production runs without Triton's rate limiter",
            do="Leave the section out, `serving: {rate_limiter: null}`; or start production with "
            "`shiplift up --rate-limiter`.",
        )
    bake = spec.promotion.bake
    if bake and not site.prometheus and any(alarm.query for alarm in bake.rules(spec.slo.p99_ms)):
        raise NotAdmitted(
            "promotion.bake has an alarm with a query, but this site names no Prometheus to ask",
            do="Its owner sets `prometheus` in site.yaml, or `monitoring.prometheus` in the values; or leave it out.",
        )
    if spec.serving.metrics != Metrics() and site.place.one_server:
        raise NotAdmitted(
            "the spec has `serving.metrics`, but here one server serves all models",
            do="Leave that out, and set them for all: `shiplift up --metrics-interval-ms`, `--metrics-quantile`.",
        )


def check_size(folder: Path, limit_mb: float) -> None:
    """Checks that a model's files are plain and not too large.

    Raises:
        NotAdmitted: they are not.
    """
    try:
        size = sum(file.size_bytes for file in regular_files(folder))
    except Irregular as error:
        raise NotAdmitted(f"the model's files can't be admitted: {error}", do="Log plain files and folders.") from error
    if size > limit_mb * 2**20:
        raise NotAdmitted(
            f"the model's files have {size / 2**20:.0f} MiB, the limit is {limit_mb:.0f} MiB",
            do=f"Write `admission: {{max_size_mb: {math.ceil(size / 2**20)}}}` in the spec, or register a smaller "
            "model.",
        )
