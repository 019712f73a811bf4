"""The package of a model that takes images: its graph, and the code that decodes files."""

from shiplift.runtime.families.fronts import FrontMaker
from shiplift.runtime.records.kinds.exported import ExportedImage
from shiplift.runtime.records.precision import Candidate


class ImageMaker(FrontMaker[ExportedImage]):
    """Makes packages that clients send files of images to."""

    def padding_problem(self, candidate: Candidate) -> str:  # noqa: ARG002 - the same for each engine
        """Images are resized, never padded."""
        return "the model takes images, which have no lengths"
