"""A Python model's only candidate: the model as it was logged, scored by asking it."""

from pathlib import Path

from shiplift.runtime.base.progress import measuring, progress
from shiplift.runtime.confinement.policy import PYTHON_HOST, Entry
from shiplift.runtime.confinement.workplace import workplace
from shiplift.runtime.families.ladder import logged, metric_file, recorded
from shiplift.runtime.families.work import Quantizing
from shiplift.runtime.model.python.bundle import write_bundle
from shiplift.runtime.model.python.environments import ensure_for, readable
from shiplift.runtime.precision.limits import limits_of
from shiplift.runtime.records.kinds.exported import ExportedPython
from shiplift.runtime.records.precision import Candidates

SCORE = Entry("shiplift.runtime.targets.python_precision:score_python", PYTHON_HOST)


def score_python(work: Quantizing[ExportedPython]) -> Candidates:
    """Scores the model in a sandbox, in its own environment.

    Raises:
        DataInvalid: the logged data do not match the model.
        ExportFailed: the model does not answer.
        SandboxLimit: scoring takes more memory or time than the spec allows.
    """
    site, store, exported = work.site, work.store, work.exported
    limits = limits_of(work.quantization, "scoring the Python model", site.policy)
    root = ensure_for(site, exported.python, store)
    with workplace(SCORE, Path(site.home), site.sandbox, read=[root]) as place, measuring():
        code = write_bundle(place.folder / "code")
        model = store.fetch(exported.model, place.folder / "source")
        order = {
            "code": str(code),
            "environment": str(root),
            "model": str(model),
            "read": readable(root, code, model),
            "reference": str(store.fetch(exported.reference, place.folder / "reference.npz")),
            "signature": exported.signature.model_dump(mode="json"),
            "validation": logged(work, place, "validation"),
            "metric": metric_file(work, place),
            "data": work.data.model_dump(mode="json"),
            "answers_as": exported.python.answers_as,
            "memory_mb": min(exported.python.memory_mb, limits.memory_mb),
            "limit_s": limits.timeout_s,
            "allow_without": list(site.sandbox.allow_without),
            "unpacked_mb": site.policy.unpacked_mb,
            "samples": site.policy.samples,
        }
        progress("scoring the Python model in the sandbox")
        result, _ = place.sandbox.run(order, limits)
        return recorded(work, place, result)
