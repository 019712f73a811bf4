"""The package of a model that takes texts: its graph, and the tokenizer."""

from typing import Any

from shiplift.runtime.families.fronts import FrontMaker
from shiplift.runtime.families.packaging.draft import Draft
from shiplift.runtime.records.kinds.exported import ExportedText
from shiplift.runtime.records.kinds.package import TextPackage


class TextMaker(FrontMaker[ExportedText]):
    """Makes packages that clients send texts to."""

    def record(self, draft: Draft, common: dict[str, Any]) -> TextPackage:  # noqa: ARG002 - the same for each draft
        """The record, with the tokens if the graph is served, too."""
        return TextPackage(**common, tensors=self.tensors)
