"""THE definition of a release: the stages from a registered version to production. Both engines walk this tuple."""

from dataclasses import replace

from pipelines.graph import Each, Pipeline, Placement, Stage
from runtime import targets
from runtime.records import Request, Site, Trigger
from runtime.spec import Target
from steps.admit import admit
from steps.conclude import conclude
from steps.deploy import deploy
from steps.export import export
from steps.find_champion import find_champion
from steps.find_targets import find_targets
from steps.gate import gate
from steps.load_test import load_test
from steps.package import package
from steps.promote import promote
from steps.quantize import quantize
from steps.rollback import rollback
from steps.tune import tune

ON_TARGET = Placement(cpu="2", memory="4Gi", deadline_s=7200, on_target=True)
MEASURED = Placement(cpu="2", memory="2Gi", deadline_s=7200, on_target=True)

RELEASE = Pipeline(
    "release",
    inputs=(Site, Request, Trigger),
    stages=(
        Stage(admit, Placement(memory="4Gi")),
        Stage(find_champion, Placement(keep="never")),
        Stage(find_targets, Placement(keep="never")),
        Stage(export, Placement(cpu="2", memory="6Gi", sandbox=True, warm="runtime.conversion.entry:convert")),
        Each(
            Target,
            "fleet",
            "targets",
            (Stage(quantize, replace(ON_TARGET, modelopt=True)), Stage(package), Stage(tune, MEASURED)),
            unfit=targets.unfit_here,
        ),
        Stage(deploy, Placement(keep="effect", cluster=True)),
        Stage(load_test, replace(MEASURED, uses="deploy", cluster=True)),
        Stage(gate),
        Stage(promote, Placement(keep="never", shielded=True, cluster=True)),
    ),
    on_exit=Stage(conclude, Placement(keep="never", cluster=True)),
)

ROLLBACK = Stage(rollback, Placement(keep="never", shielded=True, cluster=True))
