"""Collects a release's records into the story that its page tells."""

from collections.abc import Callable

from shiplift.runtime.gates.report import Story
from shiplift.runtime.records.deployment import Deployment
from shiplift.runtime.records.kinds.exported import Exported
from shiplift.runtime.records.measurement import LoadReport, Tuned
from shiplift.runtime.records.precision import Candidates
from shiplift.runtime.spec.admitted import Admitted
from shiplift.runtime.store.history import History


def story_of(
    history: History,
    told: Callable[[Exported], str],
    *,
    config: str = "",
    champion_config: str = "",
    load_table: str = "",
) -> Story:
    """What is still known about a release. The configurations are the config.pbtxt of its package and the champion's.

    `load_table` is the load generator's own table, as CSV. `told` says how the model was exported, which depends on its
    kind.
    """
    deployment, exported = history.last(Deployment), history.last(Exported)
    return Story(
        admitted=history.last(Admitted),
        exported=exported,
        how_exported=told(exported) if exported else "",
        candidates=history.last(Candidates),
        tuned=history.last(Tuned),
        package=history.package,
        deployed=deployment.targets if deployment else (),
        left_out=deployment.left_out if deployment else {},
        load_report=history.last(LoadReport),
        load_table=load_table,
        config=config,
        champion_config=champion_config,
    )
