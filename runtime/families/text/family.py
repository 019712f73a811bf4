"""The family of models that take texts."""

from shiplift.runtime.admission.inspection import InspectedVersion
from shiplift.runtime.families.front_family import FrontFamily
from shiplift.runtime.families.text.package import TextMaker
from shiplift.runtime.model.text.tasks import GENERATION, IMAGE_TASKS, TEXT_FLAVORS
from shiplift.runtime.records.kinds.contract import DeclaredText
from shiplift.runtime.records.site import Site
from shiplift.runtime.spec.document import ReleaseSpec


class TextFamily(FrontFamily):
    """Hugging Face's models whose task is about texts, but for those that generate some."""

    kind = "text"
    takes_images = False
    maker = TextMaker

    def recognises(self, inspected: InspectedVersion) -> bool:
        """Whether its task is about texts."""
        return inspected.flavor in TEXT_FLAVORS and inspected.task not in (GENERATION, *IMAGE_TASKS)

    def contract(self, _site: Site, _spec: ReleaseSpec, inspected: InspectedVersion) -> DeclaredText:
        """The texts that its task names, and the example."""
        return DeclaredText(signature=inspected.signature, example=inspected.example, notes=inspected.notes)
