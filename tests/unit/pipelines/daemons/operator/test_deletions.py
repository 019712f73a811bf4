"""A service deleted by hand is a mistake, unless an annotation says that its model is retired."""

from typing import Any

from shiplift.pipelines.daemons.operator.deletions import Deletions
from shiplift.runtime.serving.kubernetes.kinds import CONFIG_MAP
from shiplift.runtime.serving.operator.deletions import ORDERS, orders
from tests.unit.api_server import running


def deleted(name: str, **annotations: str) -> dict[str, Any]:
    notes = {f"shiplift.dev/{key}": text for key, text in annotations.items()}
    meta = {"name": name, "namespace": "models", "uid": "u", "annotations": notes}
    return {"metadata": meta, "spec": {"model": name}}


def test_only_a_deletion_with_an_annotation_is_an_order() -> None:
    with running() as server:
        api = server.api("models")
        deletions = Deletions(api)
        deletions.note(deleted("digits"))
        (event,) = server.objects["events"].values()
        assert (event["reason"], event["type"]) == ("DeletedByHand", "Warning")
        assert "`kubectl annotate tritonservice digits shiplift.dev/retire=REASON`" in event["message"]
        assert api.get(CONFIG_MAP, ORDERS) is None

        deletions.note(deleted("withdrawn", withdrawn="true"))  # by an aborted first promotion, or by `shiplift retire`
        assert len(server.objects["events"]) == 1

        deletions.note(deleted("first", retire="replaced\nby letters"))
        deletions.note(deleted("second", retire=""))
        noted = orders(api.get(CONFIG_MAP, ORDERS))
        assert sorted(noted) == ["first", "second"]
        assert (noted["first"].by, "\n" in noted["first"].reason) == ("someone with kubectl", False)
        assert sorted(each["reason"] for each in server.objects["events"].values())[1:] == ["Retiring", "Retiring"]
