"""The definition of scoring a dataset apart from production. Both engines walk this tuple."""

from shiplift.pipelines.graph import FanOut, Pipeline, Placement, Stage
from shiplift.runtime.records.offline import OfflineOrder, OfflineShare
from shiplift.runtime.records.site import Site
from shiplift.steps.finish_offline import finish_offline
from shiplift.steps.plan_offline import plan_offline
from shiplift.steps.score_share import score_share

DAY_S = 86_400

PREDICT = Pipeline(
    "predict",
    inputs=(Site, OfflineOrder),
    stages=(
        Stage(plan_offline, Placement(keep="never", cluster=True, memory="2Gi")),
        FanOut(
            OfflineShare,
            "offline_plan",
            "shares",
            (Stage(score_share, Placement(keep="never", cpu="1", memory="4Gi", deadline_s=DAY_S)),),
        ),
        Stage(finish_offline, Placement(keep="never", memory="1Gi")),
    ),
)
