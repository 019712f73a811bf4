"""Collects a release's records into the story that its page tells."""

from shiplift.runtime.gates.report import Story
from shiplift.runtime.records.measurement import LoadReport, Tuned
from shiplift.runtime.records.model import Exported
from shiplift.runtime.records.precision import Candidates
from shiplift.runtime.records.serving import Deployment
from shiplift.runtime.spec.admitted import Admitted
from shiplift.runtime.store.history import History


def story_of(history: History, *, config: str = "", champion_config: str = "") -> Story:
    """What is still known of a release; the configurations are the config.pbtxt of its package and the champion's."""
    deployment = history.last(Deployment)
    return Story(
        admitted=history.last(Admitted),
        exported=history.last(Exported),
        candidates=history.last(Candidates),
        tuned=history.last(Tuned),
        package=history.package,
        deployed=deployment.targets if deployment else (),
        left_out=deployment.left_out if deployment else {},
        load_report=history.last(LoadReport),
        config=config,
        champion_config=champion_config,
    )
