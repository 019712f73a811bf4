"""Pipelines to plan, with profiles of members like those measured on two cores of a Xeon with AMX.

At batch 8 and with both cores, ResNet-50 in int8 does 355 inferences/s there, the encoder in bf16 426, MiniLM 732. With
one thread an execution takes 1.7 to 2 times as long.
"""

from dataclasses import dataclass

from shiplift.runtime.composition.check import check
from shiplift.runtime.planning.arrivals import Arrivals
from shiplift.runtime.planning.options import Grid, Problem
from shiplift.runtime.planning.profiles import MemberConfiguration, Profiles, StepProfile
from shiplift.runtime.planning.scenario import graph_of
from shiplift.runtime.records.precision import Engine, Precision
from shiplift.runtime.spec.pipeline import parse

GRID = Grid(max_batch=(1, 4, 16), spare=1)
_X = "{datatype: FP32, shape: [-1, 8]}"


@dataclass(frozen=True, kw_only=True)
class Dag:
    """A pipeline, what is known of it, and what is asked. `tried`: its combinations are few enough to try them all."""

    text: str
    profiles: Profiles
    rate_per_s: float
    p99_ms: float
    cv: float = 1.0
    tried: bool = True

    def problem(self, seed: int) -> Problem:
        """What is planned."""
        written = parse(self.text)
        checked = check(written, {}, {step.python: b"" for step in written.spec.steps.values() if step.python})
        if checked.problems:
            raise ValueError(f"{written.spec.name}: {checked.problems[0]}")
        return Problem(
            spec=written.spec,
            graph=graph_of(written.spec, bls=checked.way == "bls"),
            profiles=self.profiles,
            arrivals=Arrivals(rate_per_s=self.rate_per_s, cv=self.cv),
            p99_ms=self.p99_ms,
            grid=GRID,
            seed=seed,
        )


def _way(
    engine: Engine, precision: Precision, threads: int, batch_ms: dict[float, float], memory_mb: float
) -> MemberConfiguration:
    return MemberConfiguration(
        engine=engine,
        precision=precision,
        threads=threads,
        batch_ms=batch_ms,
        max_batch=int(max(batch_ms)),
        spread=0.15,
        memory_mb=memory_mb,
    )


RESNET = (
    _way("openvino", "int8", 1, {1: 6.2, 8: 43, 16: 84}, 160),
    _way("openvino", "int8", 2, {1: 3.6, 8: 22.5, 16: 44}, 165),
    _way("openvino", "bf16", 2, {1: 6.0, 8: 39, 16: 76}, 210),
)
ENCODER = (
    _way("openvino", "bf16", 1, {1: 5.5, 8: 36, 16: 71}, 180),
    _way("openvino", "bf16", 2, {1: 3.2, 8: 18.8, 16: 37}, 185),
    _way("onnxruntime", "fp32", 2, {1: 13, 8: 88, 16: 175}, 150),
)
MINILM = (
    _way("openvino", "bf16", 1, {1: 3.2, 8: 21, 16: 41}, 140),
    _way("openvino", "bf16", 2, {1: 1.9, 8: 10.9, 16: 21}, 145),
)
CNN = (_way("onnxruntime", "fp32", 1, {1: 0.15, 16: 0.4}, 40),)
TREES = (_way("onnxruntime", "fp32", 1, {1: 0.3, 16: 1.2}, 45),)
DETECT = (
    _way("openvino", "bf16", 1, {1: 14, 4: 54}, 190),
    _way("openvino", "bf16", 2, {1: 8, 4: 29}, 195),
)
READ = (
    _way("openvino", "bf16", 1, {1: 3.4, 4: 11, 16: 40}, 170),
    _way("openvino", "bf16", 2, {1: 2.1, 4: 6.2, 16: 22}, 175),
)

# The three members of `examples/ocr` on pages of 720 x 960 pixels, as their releases' tuning measured them.
PAGE_DETECT = (_way("openvino", "bf16", 1, {1: 76, 4: 278}, 457),)
PAGE_DIRECT = (
    _way("openvino", "bf16", 1, {1: 1.14, 4: 3.33}, 147),
    _way("openvino", "bf16", 2, {4: 2.66}, 145),
)
PAGE_READ = (
    _way("openvino", "bf16", 1, {1: 7.37, 4: 31.4}, 265),
    _way("openvino", "bf16", 2, {1: 5.38, 4: 20.5}, 266),
)


def _chain() -> Dag:
    return Dag(
        text=f"""
name: chain
inputs: {{x: {_X}}}
outputs: {{score: {_X}}}
members: {{cnn: {{model: cnn}}, encoder: {{model: encoder}}, trees: {{model: trees}}}}
steps:
  clean: {{member: cnn, inputs: {{x: x}}, outputs: {{y: cleaned}}}}
  embed: {{member: encoder, inputs: {{x: cleaned}}, outputs: {{y: embedding}}}}
  rank: {{member: trees, inputs: {{x: embedding}}, outputs: {{y: score}}}}
""",
        profiles=Profiles(members={"cnn": CNN, "encoder": ENCODER, "trees": TREES}, request_ms=0.4, step_ms=0.1),
        rate_per_s=1500,
        p99_ms=12,
    )


def _fan_out() -> Dag:
    return Dag(
        text=f"""
name: fan-out
inputs: {{image: {_X}, text: {_X}}}
outputs: {{match: {_X}}}
members: {{resnet: {{model: resnet}}, minilm: {{model: minilm}}, trees: {{model: trees}}}}
steps:
  see: {{member: resnet, inputs: {{x: image}}, outputs: {{y: seen}}}}
  read: {{member: minilm, inputs: {{x: text}}, outputs: {{y: meant}}}}
  join: {{member: trees, inputs: {{a: seen, b: meant}}, outputs: {{y: match}}}}
""",
        profiles=Profiles(members={"resnet": RESNET, "minilm": MINILM, "trees": TREES}, request_ms=0.4, step_ms=0.1),
        rate_per_s=1000,
        p99_ms=15,
    )


def _cascade() -> Dag:
    return Dag(
        text=f"""
name: cascade
inputs: {{x: {_X}}}
outputs: {{label: {_X}}}
members: {{cnn: {{model: cnn}}, resnet: {{model: resnet}}, encoder: {{model: encoder}}}}
steps:
  guess: {{member: cnn, inputs: {{x: x}}, outputs: {{y: quick, c: sure}}}}
  look: {{member: resnet, inputs: {{x: x}}, outputs: {{y: better, c: surer}}, when: {{tensor: sure, below: 0.8}},
         otherwise: {{better: quick, surer: sure}}}}
  think: {{member: encoder, inputs: {{x: x}}, outputs: {{y: label}}, when: {{tensor: surer, below: 0.8}},
          otherwise: {{label: better}}}}
""",
        profiles=Profiles(
            members={"cnn": CNN, "resnet": RESNET, "encoder": ENCODER},
            steps={"look": StepProfile(probability=0.25), "think": StepProfile(probability=0.05)},
            request_ms=0.4,
            step_ms=0.3,
            pipeline_mb=60,
        ),
        rate_per_s=3000,
        p99_ms=20,
    )


def _crops() -> Dag:
    return Dag(
        text=f"""
name: crops
admission: {{python: sandbox}}
inputs: {{image: {_X}}}
outputs: {{text: {_X}}}
members: {{detect: {{model: detect}}, read: {{model: read}}}}
steps:
  find: {{member: detect, inputs: {{x: image}}, outputs: {{y: heat}}}}
  crop: {{python: crop.py, inputs: {{heat: heat}}, outputs: {{lines: {_X}}}}}
  recognise: {{member: read, inputs: {{x: lines}}, outputs: {{y: logits}}, for_each: {{over: lines, max: 32}}}}
  vote: {{python: vote.py, inputs: {{logits: logits}}, outputs: {{text: {_X}}}}}
""",
        profiles=Profiles(
            members={"detect": DETECT, "read": READ},
            steps={
                "crop": StepProfile(ms=1.5, spread=0.3),
                "vote": StepProfile(ms=0.8, spread=0.3),
                "recognise": StepProfile(rows={0: 1, 2: 3, 6: 4, 16: 2}),
            },
            request_ms=0.8,
            step_ms=0.3,
            pipeline_mb=90,
        ),
        rate_per_s=300,
        p99_ms=80,
    )


def _ocr() -> Dag:
    """The steps of `examples/ocr`; how many lines a page has, and what Python takes, are guesses."""
    lines = StepProfile(rows={0: 1, 4: 2, 16: 6, 40: 1})
    return Dag(
        text=f"""
name: ocr
admission: {{python: sandbox}}
inputs: {{jpeg: {_X}}}
outputs: {{text: {_X}}}
members: {{detector: {{model: ocr-detect}}, director: {{model: ocr-direction}}, reader: {{model: ocr-recognise}}}}
steps:
  decode: {{python: decode.py, inputs: {{jpeg: jpeg}}, outputs: {{page: {_X}}}}}
  detect: {{member: detector, inputs: {{x: page}}, outputs: {{y: heat}}}}
  crop: {{python: crop.py, inputs: {{heat: heat}}, outputs: {{lines: {_X}}}}}
  orient: {{member: director, inputs: {{x: lines}}, outputs: {{y: ways}}, for_each: {{over: lines, max: 40}}}}
  turn: {{python: turn.py, inputs: {{lines: lines, ways: ways}}, outputs: {{upright: {_X}}}}}
  read: {{member: reader, inputs: {{x: upright}}, outputs: {{y: ids}}, for_each: {{over: upright, max: 40}}}}
  spell: {{python: spell.py, inputs: {{ids: ids}}, outputs: {{text: {_X}}}}}
""",
        profiles=Profiles(
            members={"detector": PAGE_DETECT, "director": PAGE_DIRECT, "reader": PAGE_READ},
            steps={
                "decode": StepProfile(ms=10, spread=0.3),
                "crop": StepProfile(ms=20, spread=0.3),
                "turn": StepProfile(ms=2, spread=0.3),
                "spell": StepProfile(ms=2, spread=0.3),
                "orient": lines,
                "read": lines,
            },
            request_ms=0.8,
            step_ms=1.0,
            pipeline_mb=90,
            worker_mb=150,
        ),
        rate_per_s=30,
        p99_ms=500,
    )


def _diamond() -> Dag:
    return Dag(
        text=f"""
name: diamond
inputs: {{query: {_X}, page: {_X}}}
outputs: {{score: {_X}}}
members: {{encoder: {{model: encoder}}, minilm: {{model: minilm}}, trees: {{model: trees}}}}
steps:
  ask: {{member: encoder, inputs: {{x: query}}, outputs: {{y: asked}}}}
  skim: {{member: minilm, inputs: {{x: page}}, outputs: {{y: skimmed}}}}
  study: {{member: encoder, inputs: {{x: skimmed}}, outputs: {{y: studied}}}}
  rank: {{member: trees, inputs: {{a: asked, b: studied}}, outputs: {{y: score}}}}
""",
        profiles=Profiles(members={"encoder": ENCODER, "minilm": MINILM, "trees": TREES}, request_ms=0.4, step_ms=0.1),
        rate_per_s=700,
        p99_ms=23,
        cv=1.5,
    )


def _frame() -> Dag:
    """Nine models on one frame: too many combinations to try them all."""
    kinds = {"cnn": CNN, "resnet": RESNET, "minilm": MINILM}
    names = [f"{kind}-{at}" for at in range(3) for kind in kinds]
    members = ", ".join(f"{name.replace('-', '_')}: {{model: {name}}}" for name in names)
    outputs = ", ".join(f"{name.replace('-', '_')}_out: {_X}" for name in names)
    steps = "\n".join(
        f"  {name}: {{member: {name.replace('-', '_')}, inputs: {{x: frame}}, "
        f"outputs: {{y: {name.replace('-', '_')}_out}}}}"
        for name in names
    )
    return Dag(
        text=f"name: frame\ninputs: {{frame: {_X}}}\noutputs: {{{outputs}}}\nmembers: {{{members}}}\nsteps:\n{steps}\n",
        profiles=Profiles(
            members={name.replace("-", "_"): kinds[name.partition("-")[0]] for name in names},
            request_ms=0.4,
            step_ms=0.1,
        ),
        rate_per_s=500,
        p99_ms=16,
        tried=False,
    )


DAGS = {
    dag.problem(0).spec.name: dag for dag in (_chain(), _fan_out(), _cascade(), _crops(), _ocr(), _diamond(), _frame())
}
