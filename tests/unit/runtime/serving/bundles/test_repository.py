import json
from pathlib import Path

from tritonclient.grpc import model_config_pb2 as pb

from shiplift.runtime.composition.check import check
from shiplift.runtime.model.python.layers import name_of
from shiplift.runtime.serving.bundles.repository import write_bundle
from shiplift.runtime.serving.triton.config import parse as parse_config
from shiplift.runtime.serving.triton.config import render
from shiplift.runtime.spec.pipeline import parse
from shiplift.runtime.store.artifacts import ArtifactStore
from tests.unit.examples import package, signature
from tests.unit.pipelines_of_models import CASCADE, SOURCES, members


def test_a_front_on_nvidia_s_server_brings_the_graph_that_it_calls_into_a_bundle(tmp_path: Path) -> None:
    store, tree = ArtifactStore((tmp_path / "artifacts").as_uri()), tmp_path / "member"
    for name in ("digits", "digits--tensors"):
        (tree / name / "2").mkdir(parents=True)
        config = pb.ModelConfig(name=name, backend="python")
        config.version_policy.specific.versions.extend([1, 2])
        (tree / name / "config.pbtxt").write_text(render(config))
    (tree / name_of("0123")).parent.mkdir()
    (tree / name_of("0123")).touch()
    stored = store.put_tree(tree)
    known, written = members(), parse(CASCADE)
    fields = {"server": "nvidia", "repository": stored, "kind": "text", "tensors": signature()}
    found = {name: package(**fields, model="digits", signature=known[name].signature) for name in written.spec.members}
    checked = check(written, found, SOURCES)
    assert checked.problems == ()
    models = write_bundle(tmp_path / "bundle", written.spec, checked, {}, store)
    front = f"digits-2--{checked.digest}"
    assert list(models) == [f"{front}--tensors", front, "cascade"]
    for name in (front, f"{front}--tensors"):
        config = parse_config((tmp_path / "bundle" / name / "config.pbtxt").read_text())
        assert (config.name, list(config.version_policy.specific.versions)) == (name, [2])
    assert (tmp_path / "bundle" / name_of("0123")).is_file()
    steps = json.loads((tmp_path / "bundle" / "cascade" / "1" / "pipeline.json").read_text())["steps"]
    assert {step["model"] for step in steps} == {front}
