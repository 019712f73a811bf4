"""The definition of a release: the stages from a registered version to production. Both engines walk this tuple."""

from dataclasses import replace

from shiplift.pipelines import pods
from shiplift.pipelines.graph import FanOut, Pipeline, Placement, Stage
from shiplift.runtime.admission.inspection import INSPECT
from shiplift.runtime.admission.logged_files import still_logged
from shiplift.runtime.families.graph.candidates import BUILD
from shiplift.runtime.families.graph.export import CONVERT
from shiplift.runtime.families.packaging.packages import ANSWER
from shiplift.runtime.records.request import Request, Trigger
from shiplift.runtime.records.site import Site
from shiplift.runtime.serving.give_back import halt_promotion
from shiplift.runtime.serving.reinstate import reinstate
from shiplift.runtime.spec.shadowing import LONGEST_S
from shiplift.runtime.spec.target import Target
from shiplift.runtime.targets import machine
from shiplift.steps.admit import admit
from shiplift.steps.conclude import conclude
from shiplift.steps.deploy import deploy
from shiplift.steps.export import export
from shiplift.steps.find_champion import find_champion
from shiplift.steps.find_targets import find_targets
from shiplift.steps.gate import gate
from shiplift.steps.load_test import load_test
from shiplift.steps.package import package
from shiplift.steps.promote import promote
from shiplift.steps.quantize import quantize
from shiplift.steps.retire import retire
from shiplift.steps.rollback import rollback
from shiplift.steps.shadow import shadow
from shiplift.steps.tune import tune

CPU = "500m"  # requested by stages that use every core they get: on a node of two cores, production still fits
PREPARE = Placement(sandbox=True, pod="prepare")
ON_TARGET = Placement(cpu=CPU, sandbox=True, on_target=True, pod="optimize")
DELIVER = Placement(cluster=True, pod="deliver")

SHADOW_S = LONGEST_S + 1800

RELEASE = Pipeline(
    "release",
    inputs=(Site, Request, Trigger),
    stages=(
        Stage(admit, replace(PREPARE, memory="4Gi", warm=INSPECT), holds=still_logged),
        Stage(find_champion, Placement(keep="never", cluster=True)),
        Stage(find_targets, replace(PREPARE, keep="never")),
        Stage(export, replace(PREPARE, cpu=CPU, memory="6Gi", warm=CONVERT)),
        FanOut(
            Target,
            "fleet",
            "targets",
            (
                Stage(quantize, replace(ON_TARGET, memory="4Gi", deadline_s=7200, gpu_tools=True, warm=BUILD)),
                Stage(package, replace(ON_TARGET, memory="1Gi", warm=ANSWER)),
                Stage(tune, replace(ON_TARGET, memory="2Gi", deadline_s=7200, bench=True)),
            ),
            unfit=machine.unfit_here,
            within=PREPARE.pod,
            at_home=machine.at_home,
        ),
        Stage(deploy, replace(DELIVER, keep="effect")),
        Stage(load_test, replace(DELIVER, cpu=CPU, memory="2Gi", deadline_s=7200, uses=deploy)),
        Stage(shadow, replace(DELIVER, cpu=CPU, memory="1Gi", deadline_s=SHADOW_S, uses=deploy)),
        Stage(gate, DELIVER),
        Stage(promote, replace(DELIVER, keep="never", shielded=True, halt=halt_promotion)),
    ),
    on_exit=Stage(conclude, Placement(keep="never", cluster=True)),
)
PODS = pods.of(RELEASE)
HANDED_OVER = pods.handed_over(PODS)

ROLLBACK = Stage(rollback, Placement(keep="never", shielded=True, cluster=True))
REINSTATE = Stage(reinstate, Placement(keep="never", shielded=True, cluster=True))
RETIRE = Stage(retire, Placement(keep="never", shielded=True, cluster=True))
SINGLE = (ROLLBACK, REINSTATE, RETIRE)  # on a cluster, each runs as its own Workflow
