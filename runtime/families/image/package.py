"""The package of a model that takes images: its graph, and the code that decodes files."""

from typing import Any

from shiplift.runtime.families.fronts import FrontMaker
from shiplift.runtime.families.packaging.draft import Draft
from shiplift.runtime.records.kinds.exported import ExportedImage
from shiplift.runtime.records.kinds.package import ImagePackage
from shiplift.runtime.records.precision import Candidate


class ImageMaker(FrontMaker[ExportedImage]):
    """Makes packages that clients send files of images to."""

    def padding_problem(self, candidate: Candidate) -> str:  # noqa: ARG002 - the same for each engine
        """Images are resized, never padded."""
        return "the model takes images, which have no lengths"

    def record(self, draft: Draft, common: dict[str, Any]) -> ImagePackage:  # noqa: ARG002 - the same for each draft
        """The record, with the pixels if the graph is served, too, and the scores on JPEG files."""
        return ImagePackage(**common, tensors=self.tensors, jpegs=self.work.candidates.jpegs)
