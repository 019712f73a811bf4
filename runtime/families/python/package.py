"""The package of a Python model: the logged files, and the process that runs them."""

from typing import Any

from shiplift.runtime.base.errors import SpecInvalid
from shiplift.runtime.families.packaging.draft import Draft
from shiplift.runtime.families.packaging.recorded import RecordedMaker
from shiplift.runtime.model.python.layers import name_of
from shiplift.runtime.records.artifact import Artifact
from shiplift.runtime.records.kinds.exported import ExportedPython
from shiplift.runtime.records.kinds.package import PythonPackage
from shiplift.runtime.records.model import PythonEnvironment
from shiplift.runtime.serving.packaging.python_backend import write_python_backend
from shiplift.runtime.serving.triton.repository import write_package


class PythonMaker(RecordedMaker[ExportedPython]):
    """Makes packages in which the author's own code answers."""

    tuned_as = "python"

    @property
    def environment(self) -> PythonEnvironment:
        """The model's own environment."""
        return self.work.exported.python.environment

    def served_questions(self) -> Artifact | None:
        """The proof's rows."""
        return self.work.exported.asked

    def write(self, draft: Draft) -> None:
        """Writes the logged model, and its environment as a file if that has to travel.

        Raises:
            SpecInvalid: answers would be cached without regard to parameters.
        """
        python, scoring = self.work.exported.python, self.work.exported.scoring
        if scoring and scoring.params and self.work.serving.response_cache:
            raise SpecInvalid(
                "`serving.response_cache` is set, and the model takes parameters: Triton's cache knows requests by "
                "their inputs alone, so it would answer one as if it had the parameters of another",
                do="Leave `response_cache` out, or log the model without parameters.",
            )
        write_package(
            draft.tree,
            draft.described,
            None,
            self.work.target.server,
            example=draft.inputs,
            golden=draft.golden,
            backend=write_python_backend(
                draft.folder / "backend",
                draft.model,
                python,
                draft.described.signature,
                scoring,
            ),
        )
        if python.layer:
            self.work.store.fetch(python.layer, draft.tree / name_of(self.environment.digest))

    def record(self, draft: Draft, common: dict[str, Any]) -> PythonPackage:  # noqa: ARG002 - the same for each draft
        """The record, with the environment that servers need."""
        return PythonPackage(**common, environment=self.environment)
