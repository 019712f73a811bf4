"""The definition of a release: the stages from a registered version to production. Both engines walk this tuple."""

from dataclasses import replace

from shiplift.pipelines.graph import Each, Pipeline, Placement, Stage
from shiplift.runtime.records.request import Request, Trigger
from shiplift.runtime.records.site import Site
from shiplift.runtime.spec.target import Target
from shiplift.runtime.targets import machine
from shiplift.steps.admit import admit
from shiplift.steps.conclude import conclude
from shiplift.steps.deploy import deploy
from shiplift.steps.export import CONVERT, export
from shiplift.steps.find_champion import find_champion
from shiplift.steps.find_targets import find_targets
from shiplift.steps.gate import gate
from shiplift.steps.load_test import load_test
from shiplift.steps.package import package
from shiplift.steps.promote import promote
from shiplift.steps.quantize import quantize
from shiplift.steps.rollback import rollback
from shiplift.steps.tune import tune

ON_TARGET = Placement(cpu="2", memory="4Gi", deadline_s=7200, on_target=True)
MEASURED = Placement(cpu="2", memory="2Gi", deadline_s=7200, on_target=True)

RELEASE = Pipeline(
    "release",
    inputs=(Site, Request, Trigger),
    stages=(
        Stage(admit, Placement(memory="4Gi")),
        Stage(find_champion, Placement(keep="never")),
        Stage(find_targets, Placement(keep="never")),
        Stage(
            export,
            Placement(cpu="2", memory="6Gi", sandbox=True, warm=CONVERT),
        ),
        Each(
            Target,
            "fleet",
            "targets",
            (
                Stage(quantize, replace(ON_TARGET, modelopt=True)),
                Stage(package),
                Stage(tune, replace(MEASURED, bench=True)),
            ),
            unfit=machine.unfit_here,
        ),
        Stage(deploy, Placement(keep="effect", cluster=True)),
        Stage(load_test, replace(MEASURED, uses=deploy, cluster=True)),
        Stage(gate),
        Stage(promote, Placement(keep="never", shielded=True, cluster=True)),
    ),
    on_exit=Stage(conclude, Placement(keep="never", cluster=True)),
)

ROLLBACK = Stage(rollback, Placement(keep="never", shielded=True, cluster=True))
