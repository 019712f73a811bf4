"""What a pod finds in the folder where the operator's ConfigMap is mounted."""

from pathlib import Path

from shiplift.runtime.records.deployment import Endpoint
from shiplift.runtime.serving.discovery import PublishedModel, published_in
from tests.unit.runtime.serving.scoring.schemas import of_columns


def test_the_mounted_models_are_reached_inside_the_cluster(tmp_path: Path) -> None:
    served = of_columns({"a": "double"})
    entry = PublishedModel(
        model="digits",
        revision="digits-1",
        version=1,
        inside=Endpoint(http="http://digits.models:8000", grpc="digits.models:8001"),
        signature=served.signature,
        scoring=served.scoring,
    )
    (tmp_path / "digits").write_text(entry.model_dump_json())
    (tmp_path / "newer").write_text('{"model": 7}')
    (tmp_path / "..data").mkdir()
    (found,) = published_in(tmp_path)
    assert (found.model, found.grpc, found.scoring) == ("digits", "digits.models:8001", served.scoring)
    assert published_in(tmp_path / "nowhere") == []
