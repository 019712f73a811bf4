"""The family of models that take images."""

from shiplift.runtime.admission.inspection import InspectedVersion
from shiplift.runtime.families.front_family import FrontFamily
from shiplift.runtime.families.image.package import ImageMaker
from shiplift.runtime.model.text.tasks import IMAGE_TASKS, TEXT_FLAVORS
from shiplift.runtime.records.kinds.contract import DeclaredImage
from shiplift.runtime.records.site import Site
from shiplift.runtime.spec.document import ReleaseSpec


class ImageFamily(FrontFamily):
    """Hugging Face's models whose task is about images, and graphs of pixels whose spec says how files are decoded.

    The latter are declared as graphs, and exported as images.
    """

    kind = "image"
    takes_images = True
    maker = ImageMaker

    def recognises(self, inspected: InspectedVersion) -> bool:
        """Whether its task is about images."""
        return inspected.flavor in TEXT_FLAVORS and inspected.task in IMAGE_TASKS

    def contract(self, _site: Site, _spec: ReleaseSpec, inspected: InspectedVersion) -> DeclaredImage:
        """The images that its task names, and the example."""
        return DeclaredImage(signature=inspected.signature, example=inspected.example, notes=inspected.notes)
