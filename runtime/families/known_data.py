"""The author's validation data and the recorded requests, of which a proof asks rows."""

from typing import Any

from shiplift.runtime.confinement.workplace import Workplace
from shiplift.runtime.families.work import Exporting


def known_data(work: Exporting[Any], place: Workplace) -> dict[str, Any] | None:
    """Fetches both for `admission.known_rows.known_rows` in the sandbox; None: there are neither."""
    file, asked, policy = work.datasets.validation, work.recorded_requests, work.site.policy
    if file is None and asked.file is None:
        return None
    return {
        "file": str(work.store.fetch(file, place.folder / "validation")) if file else None,
        "name": work.datasets.validation_name,
        "recorded": str(work.store.fetch(asked.file, place.folder / "recorded")) if asked.file else None,
        "recorded_name": asked.name,
        "label": work.data.label,
        "columns": list(work.data.slices),
        "unpacked_mb": policy.unpacked_mb,
        "samples": policy.samples,
    }
