"""The settings of the WorkflowTemplates, apart from `templates`: importing that loads Hera, which takes a second."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from shiplift.runtime.records.site import Site


@dataclass(frozen=True, kw_only=True)
class Size:
    """A stage's CPU request, and its memory, both as request and limit. A pod is as large as its largest stage."""

    cpu: str
    memory: str


@dataclass(frozen=True, kw_only=True)
class TemplateSettings:
    """The settings of the templates. `sizes` overrides the resources of stages, by stage name.

    `gpu_image` is the image of `gpu_tools` stages for NVIDIA targets; if empty, they use `image`.
    `data_claim` is the PersistentVolumeClaim with datasets to score; empty: there is none.
    """

    namespace: str
    image: str
    site: Site
    pull_policy: str = "IfNotPresent"
    sizes: Mapping[str, Size] = field(default_factory=dict)
    keep_s: int = 7 * 86400
    keep_pods_s: int = 300
    git_secrets: Sequence[str] = ()
    gpu_image: str = ""
    data_claim: str = ""
