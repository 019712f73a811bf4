"""The author's validation data, of which a proof asks rows."""

from typing import Any

from shiplift.runtime.confinement.workplace import Workplace
from shiplift.runtime.families.work import Exporting


def known_data(work: Exporting[Any], place: Workplace) -> dict[str, Any] | None:
    """Fetches the validation data for `admission.known_rows.validation_rows` in the sandbox; None: there are none."""
    file, policy = work.datasets.validation, work.site.policy
    if file is None:
        return None
    return {
        "file": str(work.store.fetch(file, place.folder / "validation")),
        "name": work.datasets.validation_name,
        "label": work.data.label,
        "columns": list(work.data.slices),
        "unpacked_mb": policy.unpacked_mb,
        "samples": policy.samples,
    }
