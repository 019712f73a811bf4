"""Which of a release's records it takes to ask rows of its proof again, or a row that somebody gives."""

from collections.abc import Mapping, Sequence
from typing import Any

from shiplift.runtime.base.errors import NotFound, UsageError
from shiplift.runtime.records.asked import AskedAgain
from shiplift.runtime.records.kinds.exported import Exported
from shiplift.runtime.records.kinds.package import Package
from shiplift.runtime.records.site import Site
from shiplift.runtime.records.verdict import Packages
from shiplift.runtime.search.repeating import ask, ask_given, ask_model
from shiplift.runtime.spec.admitted import Admitted
from shiplift.runtime.store.history import History


def ask_again(site: Site, history: History, name: str, form: str, rows: Sequence[int], clients: int) -> AskedAgain:
    """Asks rows of the release of `name` (MODEL/VERSION) again, of its original and of a form.

    A form is one of its packages, such as `onnxruntime-fp32`; empty: the deployed one, or else the first.

    Raises:
        NotFound: the release ended before it had a package, or kept no rows.
        UsageError: it has no such form, or no such row.
    """
    admitted, exported = history.last(Admitted), history.last(Exported)
    package = _chosen(history, name, form)
    if admitted is None or exported is None or package is None:
        raise NotFound(
            f"the release of {name} ended before it had a package",
            do="Ask the model alone: `shiplift ask --inputs`. `shiplift report` says why it ended.",
        )
    return ask(site, admitted, exported, package, rows, clients)


def ask_given_again(
    site: Site, history: History, name: str, form: str, inputs: Mapping[str, Any], clients: int
) -> AskedAgain:
    """Asks `name` (MODEL/VERSION) a row, whatever became of its release once it was admitted.

    Without a form, the original is asked alone, twice; with one, that form as well.

    Raises:
        NotFound: the version was not admitted.
        UsageError: it has no such form, or the row has no value for an input, or one that does not fit.
    """
    admitted, exported = history.last(Admitted), history.last(Exported)
    if admitted is None:
        raise NotFound(f"{name} was not admitted", do="See `shiplift report`.")
    package = _chosen(history, name, form) if form else None
    if package is None or exported is None:
        return ask_model(site, admitted, exported, inputs)
    return ask_given(site, admitted, exported, package, inputs, clients)


def _chosen(history: History, name: str, form: str) -> Package | None:
    packages = history.last(Packages)
    built = {package.variant: package for package in (packages.packages if packages else ())}
    if not form:
        return history.package
    if form not in built:
        raise UsageError(
            f"the release of {name} has no form {form!r}; it has {', '.join(built) or 'none'}",
            do="Choose one of these, or leave `--form` out.",
        )
    return built[form]
