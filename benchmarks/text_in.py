"""`make bench-text`: a sentence encoder that takes text, against its own tokens in, and against Infinity.

MiniLM-L6 with its real weights is logged with `mlflow.sentence_transformers` and released with `serving: {tensors:
true}`. Production then serves the texts' model and the graph behind it, in the same engine, precision and
configuration. Infinity serves the same weights in fp32 and in bf16, each with the best of the settings in
`rivals/table.py`. All are asked for the same sentences of 64 tokens, in rounds that alternate them. Servers that are
not asked are stopped meanwhile.

    python -m benchmarks.text_in --help
"""

import argparse
import copy
import json
import os
import shutil
import struct
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.extras import Missing
from benchmarks.machine import until
from benchmarks.protocols import HOST, binary_request, request_bytes
from benchmarks.ratios import OVER_RIVALS, Window, spread
from benchmarks.rivals.table import EMBEDDERS
from benchmarks.server_comparison import Effort, machine, measure, tell, tuned_rival, wait_until_idle
from benchmarks.sides import Side
from benchmarks.subjects import Champion, Failed, Subject
from benchmarks.zoo.cases.huggingface import minilm, minilm_folder
from shiplift.pipelines.engines.local import stack
from shiplift.pipelines.engines.local.releases import Releases
from shiplift.pipelines.settings import Settings
from shiplift.runtime.base.names import TENSORS, release_name
from shiplift.runtime.serving.machine.served import every_served
from shiplift.runtime.serving.triton.client import TritonClient

RESULTS = Path(__file__).parent / "results" / "text_in.json"
MODEL, TOKENS, GOAL = "minilm", 64, 0.85
SPEC = """
data: {metric: cosine}
serving: {tensors: true}
slo: {p99_ms: 2000}
search: {max_batch: [8], instances: [2], queue_delay_us: [0], threads: [1], time_budget_s: 20}
"""


def exactly(words: Any, sentences: list[str], count: int) -> list[str]:
    """Texts of `TOKENS` tokens, cut out of the sentences."""
    texts = []
    for at in range(len(sentences)):
        joined = " ".join(sentences[at:] + sentences[:at])
        ids = words(joined, truncation=True, max_length=TOKENS).input_ids
        text = words.decode(ids, skip_special_tokens=True)
        if len(words(text).input_ids) == TOKENS:
            texts.append(text)
        if len(texts) == count:
            return texts
    raise SystemExit(f"only {len(texts)} of {count} texts have {TOKENS} tokens")


def english() -> list[str]:
    """Sentences of Python's own documentation, which every Python brings along."""
    from pydoc_data.topics import topics

    text = " ".join(" ".join(topic.split()) for topic in topics.values())
    return [sentence for part in text.split(". ") if 30 < len(sentence := part.strip()) < 300 and sentence.isascii()]


def tokenizers_alone(words: Any, texts: list[str], *, seconds: float) -> dict[str, Any]:
    """Texts a second that the Rust library and OpenVINO's operators tokenize, in batches of 8 with one thread each.

    Both must give the same ids. The operators would run as a part of the graph; they are the alternative to ours.
    """
    import openvino
    from openvino_tokenizers import convert_tokenizer

    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    rust = words.backend_tokenizer
    rust.enable_padding()
    settings = {"INFERENCE_NUM_THREADS": 1}
    operators = openvino.Core().compile_model(convert_tokenizer(words), "CPU", settings)
    batches = [texts[at : at + 8] for at in range(0, len(texts), 8)]
    same = all(
        [encoding.ids for encoding in rust.encode_batch(batch)] == operators(batch)["input_ids"].tolist()
        for batch in batches
    )
    sides = {"rust": rust.encode_batch, "openvino": operators}
    rates: dict[str, list[float]] = {name: [] for name in sides}
    for round_ in range(7):
        for name in list(sides)[:: -1 if round_ % 2 else 1]:
            rates[name].append(_rate(sides[name], batches, seconds))
    return {"same_ids": same, **{f"{name}_texts_per_s": spread(each).model_dump() for name, each in rates.items()}}


def _rate(tokenize: Any, batches: list[list[str]], seconds: float) -> float:
    count, started = 0, time.perf_counter()
    while (now := time.perf_counter()) - started < seconds:
        for batch in batches:
            tokenize(batch)
        count += sum(map(len, batches))
    return count / (now - started)


# --- the sides --------------------------------------------------------------------------------------------------------


def own_sides(running: stack.Stack, words: Any, texts: list[str]) -> list[Side]:
    """Production's model of texts, and the graph behind it."""
    with TritonClient(f"{HOST}:{running.grpc_port}") as client:
        signatures = {name: client.signature(name) for name in (MODEL, MODEL + TENSORS)}
    port, process = running.http_port, running.processes["triton"]
    asked: dict[str, list[bytes]] = {}
    for name, signature in signatures.items():
        output = signature.outputs[0].name
        for text in texts:
            if name == MODEL:
                body = text.encode()
                inputs = {signature.inputs[0].name: ("BYTES", (1, 1), struct.pack("<I", len(body)) + body)}
            else:
                made = words(text)
                inputs = {
                    spec.name: (spec.datatype, (1, TOKENS), np.array(made[spec.name], np.int64).tobytes())
                    for spec in signature.inputs
                }
            request = request_bytes(port, f"/v2/models/{name}/infer", *binary_request(inputs, output))
            asked.setdefault(name, []).append(request)
    return [
        Side(name=name, port=port, process=process, requests=tuple(requests), check={}, difference=0, settings={})
        for name, requests in asked.items()
    ]


@contextmanager
def embedders(model: Any, texts: list[str], effort: Effort, work: Path) -> Iterator[tuple[list[Side], dict[str, str]]]:
    """Runs the rivals with the settings that suit them best; yields them, and why others are left out, by name."""
    folder = work / "rivals"
    shutil.copytree(minilm_folder(), folder)  # the rivals write their exports into it
    subject = Subject(
        name=MODEL,
        folder=folder,
        samples=np.array(texts),
        answers=model.encode(texts),
        about="MiniLM-L6 with its real weights",
        torch=True,
    )
    champion = Champion(name=MODEL, logged=folder, report={})
    compared: list[Side] = []
    left_out: dict[str, str] = {}
    with ExitStack() as servers:
        for rival in EMBEDDERS:
            try:
                compared.append(tuned_rival(rival, subject, champion, effort, work, servers, compared))
            except (Failed, Missing) as error:
                left_out[rival.name] = str(error)
                tell(f"  {rival.name} can't be measured: {error}")
        yield compared, left_out


def released(home: Path, running: stack.Stack, model: Any, texts: list[str]) -> dict[str, Any]:
    """Logs and registers the model, with its own embeddings as labels, and waits for its release.

    Returns what was promoted.
    """
    import mlflow

    mlflow.set_tracking_uri(running.registry_uri)
    validation = home / "validation.npz"
    np.savez(validation, input=np.array(texts), label=model.encode(texts))
    with mlflow.start_run():
        mlflow.log_text(SPEC, "shiplift/shiplift.yaml")
        mlflow.log_artifact(str(validation), "shiplift")
        info = mlflow.sentence_transformers.log_model(
            model, name="model", input_example=texts[:8], registered_model_name=MODEL, pip_requirements=[]
        )
    releases, name = Releases(home), release_name(MODEL, int(info.registered_model_version), "")
    report = until(lambda: releases.result(name), "the release", seconds=600)
    if report.exit_code:
        raise SystemExit(f"the release failed: {report.reason}")
    package = next(each.package for each in every_served(home) if each.package.model == MODEL)
    config = package.config.model_dump(mode="json")
    return {"seconds": round(report.since_request_seconds, 1), "promoted": package.described, "config": config}


def run(effort: Effort, clients: int) -> dict[str, Any]:
    """Releases the model, and measures both sides in turn."""
    sentences = english()
    with tempfile.TemporaryDirectory(prefix="shiplift-text-") as folder:
        home = Path(folder) / "home"
        running = stack.up(Settings(home=home, free_ports=True))
        try:
            model = minilm(Path(folder))
            texts = exactly(model.tokenizer, sentences, 64)
            alone = tokenizers_alone(copy.deepcopy(model.tokenizer), texts, seconds=effort.window_s / 4)
            told = released(home, running, model, texts)
            running = stack.require(home)
            ours = own_sides(running, model.tokenizer, texts)
            with embedders(model, texts, effort, Path(folder)) as (rivals, left_out):
                wait_until_idle(ours[0])
                windows = [
                    measure(side, others(side, [ours[0], *rivals]), clients, round_, effort, Path(folder))
                    for round_ in range(effort.rounds)
                    for side in (ours + rivals)[:: -1 if round_ % 2 else 1]
                ]
        finally:
            stack.down(home)
    return {"release": told, **compared_by(windows, rivals), "left_out": left_out, "tokenizers_alone": alone}


def others(side: Side, servers: list[Side]) -> list[Side]:
    """The servers but the one that has the side."""
    return [server for server in servers if server.process != side.process]


def compared_by(windows: list[Window], rivals: list[Side]) -> dict[str, Any]:
    """Medians and extremes of all sides, and of the ratios of the texts' model to each other side, round by round."""
    names = dict.fromkeys(window.side for window in windows)
    share = over(windows, MODEL + TENSORS)["throughput"]
    return {
        "sides": {
            name: {
                key: spread([getattr(window, key) for window in windows if window.side == name]).model_dump()
                for key in ("throughput_per_s", "p50_ms", "p99_ms", "server_cpu_ms")
            }
            for name in names
        },
        "share_of_the_model_s_throughput": share,
        "goal": {"at_least": GOAL, "met": share["median"] >= GOAL},
        "rivals": {
            rival.name: {
                "precision": rival.precision,
                "settings": rival.settings,
                "tried": rival.tried,
                "difference_from_original": rival.difference,
                **(ratios := over(windows, rival.name)),
                "goal": {
                    "at_least": OVER_RIVALS[rival.precision],
                    "met": ratios["throughput"]["median"] >= OVER_RIVALS[rival.precision],
                },
            }
            for rival in rivals
        },
        "errors": sum(window.errors for window in windows),
    }


def over(windows: list[Window], other: str) -> dict[str, Any]:
    """Throughput and p99 of the texts' model over another side's, round by round: median and extremes."""
    by = {(window.side, window.round): window for window in windows}
    pairs = [(by[MODEL, at], window) for (name, at), window in by.items() if name == other]
    return {
        "throughput": spread([ours.throughput_per_s / theirs.throughput_per_s for ours, theirs in pairs]).model_dump(),
        "p99": spread([ours.p99_ms / theirs.p99_ms for ours, theirs in pairs]).model_dump(),
    }


def main() -> None:
    """Measures, writes the JSON, and prints the medians."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="two rounds of short windows")
    parser.add_argument("--clients", type=int, default=16, help="requests at once (16)")
    parser.add_argument("--out", type=Path, default=RESULTS, help="where the JSON goes")
    parser.add_argument("--json", action="store_true", help="also print it")
    arguments = parser.parse_args()
    quick = Effort(rounds=2, warm_s=0.5, window_s=1.5, quick=True)
    effort = quick if arguments.quick else Effort(rounds=7, warm_s=1, window_s=4)
    measured = run(effort, arguments.clients)
    results = {"machine": machine(), "clients": arguments.clients, "tokens": TOKENS, **measured}
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    arguments.out.write_text(json.dumps(results, indent=1) + "\n")
    for name, side in measured["sides"].items():
        tell(
            f"{name:<18} {side['throughput_per_s']['median']:>7.1f}/s  p99 {side['p99_ms']['median']:.1f} ms  "
            f"{side['server_cpu_ms']['median']:.2f} CPU ms an answer"
        )
    share = measured["share_of_the_model_s_throughput"]
    met = "met" if measured["goal"]["met"] else "missed"
    tell(
        f"text in: {share['median']:.2f} of the tensors' throughput ({share['low']:.2f} to {share['high']:.2f}); "
        f"goal {GOAL}: {met}"
    )
    for name, rival in measured["rivals"].items():
        times, goal = rival["throughput"], rival["goal"]
        met = "met" if goal["met"] else "missed"
        tell(
            f"{times['median']:.1f}x {name} ({times['low']:.1f} to {times['high']:.1f}), "
            f"p99 {rival['p99']['median']:.2f}; goal {goal['at_least']:g}x: {met}"
        )
    alone = measured["tokenizers_alone"]
    tell(
        f"one thread tokenizes {alone['rust_texts_per_s']['median']:.0f} texts a second in Rust, "
        f"{alone['openvino_texts_per_s']['median']:.0f} with OpenVINO's operators; "
        f"{'the same ids' if alone['same_ids'] else 'other ids'}"
    )
    if arguments.json:
        print(json.dumps(results))
    if measured["errors"]:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
