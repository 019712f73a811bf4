"""What the WorkflowTemplates depend on, apart from them: importing `templates` loads Hera, which takes a second."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from shiplift.runtime.records.site import Site


@dataclass(frozen=True, kw_only=True)
class Size:
    """What a stage needs: its CPU request, and its memory request and limit. A pod is as large as its largest stage."""

    cpu: str
    memory: str


@dataclass(frozen=True, kw_only=True)
class TemplateSettings:
    """What the templates depend on. `sizes` overrides the resources of stages, by the stage's name.

    `gpu_image` is the image of `gpu_tools` stages for NVIDIA targets; empty: `image`.
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
