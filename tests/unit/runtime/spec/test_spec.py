import json
import time
from collections.abc import Iterator
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from shiplift.runtime.base.durations import in_short, seconds_of
from shiplift.runtime.base.errors import SpecInvalid
from shiplift.runtime.records.base import Record
from shiplift.runtime.spec import document
from shiplift.runtime.spec.document import MAX_SPEC_BYTES, ReleaseSpec, parse
from shiplift.runtime.spec.fields import _kinds
from shiplift.runtime.spec.serving_settings import Warmup
from shiplift.templates import __file__ as templates
from tests.unit.examples import Golden

TEMPLATE = templates.replace("__init__.py", "shiplift.yaml")


def test_an_empty_text_is_the_default_spec() -> None:
    assert parse("") == parse("# only a comment\n") == parse("{}") == ReleaseSpec()


def test_the_commented_template_says_exactly_the_defaults() -> None:
    with open(TEMPLATE) as file:  # noqa: PTH123 - a path from a package
        assert parse(file.read()) == ReleaseSpec()


def test_the_commented_template_names_every_field() -> None:
    with open(TEMPLATE) as file:  # noqa: PTH123
        text = file.read()
    fields = {each.alias or name for kind in _records(ReleaseSpec) for name, each in kind.model_fields.items()}
    assert [name for name in sorted(fields) if f"{name}:" not in text] == []


def _records(kind: type[Record]) -> set[type[Record]]:
    records = {kind}
    for field in kind.model_fields.values():
        for inner in (field.annotation, *getattr(field.annotation, "__args__", ())):
            if isinstance(inner, type) and issubclass(inner, Record):
                records |= _records(inner)
    return records


def test_the_schema_for_editors_is_the_one_promised(golden: Golden) -> None:
    golden("shiplift.schema.json", json.dumps(document.schema(), indent=2) + "\n")


def test_a_metric_of_one_s_own_has_to_be_allowed_and_may_have_any_value() -> None:
    own = "data: {metric: {python: score.py, better: smaller}}\nquality: {min_score: 700}"
    with pytest.raises(SpecInvalid, match=r"data\.metric score\.py is Python code: set `admission\.python: sandbox`"):
        parse(own)
    assert str(parse(f"admission: {{python: sandbox}}\n{own}").data.metric) == "score.py"


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("model: 3", "model"),
        ("targets: []", "targets"),
        ("targets: [{name: UPPER}]", "targets.0.name"),
        ("targets: [{name: -a}]", "targets.0.name"),
        ("targets: [{}, {name: b, precisions: []}]", "targets.1.precisions"),
        ("targets: [{precisions: [fp64]}]", "targets.0.precisions.0"),
        ("targets: [{accelerator: tpu}]", "targets.0.accelerator"),
        ("targets: [{server: other}]", "targets.0.server"),
        ("targets: [{name: a}, {name: a}]", "targets"),
        ("admission: {pickle: allow}", "admission.pickle"),
        ("data: {metric: {python: ../score.py}}", "data.metric.python"),
        ("data: {metric: {python: score.sh}}", "data.metric.python"),
        ("data: {metric: {python: score.py, better: up}}", "data.metric.better"),
        ("data: {metric: bleu}", "data.metric"),
        ("admission: {max_size_mb: 0}", "admission.max_size_mb"),
        ("admission: {max_size_mb: .inf}", "admission.max_size_mb"),
        ("export: {opset: 16}", "export.opset"),
        ("export: {opset: 24}", "export.opset"),
        ("export: {opset: 20.5}", "export.opset"),
        ("export: {postprocess: relu}", "export.postprocess.0"),
        ("export: {postprocess: [softmax, relu]}", "export.postprocess.1"),
        ("export: {top_k: 0}", "export.top_k"),
        ("export: {top_k: 10000000000000000000000}", "export.top_k"),
        ("export: {outputs: logits}", "export.outputs"),
        ("export: {memory_mb: 100}", "export.memory_mb"),
        ("export: {memory_mb: 10000000000000000000000}", "export.memory_mb"),
        ("export: {timeout_s: 1}", "export.timeout_s"),
        ("data: {validation: /etc/passwd}", "data.validation"),
        ("data: {calibration: a/../../b}", "data.calibration"),
        ("data: {metric: recall}", "data.metric"),
        ("data: {min_samples: 0}", "data.min_samples"),
        ("data: {calibration_samples: 1}", "data.calibration_samples"),
        ("quantization: {methods: [magic]}", "quantization.methods.0"),
        ("quantization: {max_score_drop: -0.1}", "quantization.max_score_drop"),
        ("quality: {parity: {max_abs: -1}}", "quality.parity.max_abs"),
        ("quality: {parity: {max_rel: .nan}}", "quality.parity.max_rel"),
        ("quality: {min_score: .inf}", "quality.min_score"),
        ("quality: {min_score: high}", "quality.min_score"),
        ("slo: 5", "slo"),
        ("slo: {p99_ms: 0}", "slo.p99_ms"),
        ("slo: {p99_ms: .nan}", "slo.p99_ms"),
        ("slo: {throughput_per_s: -1}", "slo.throughput_per_s"),
        ("slo: {throughput_per_s: 1e999}", "slo.throughput_per_s"),
        ("slo: {failures: -1}", "slo.failures"),
        ("slo: {memory_mb: 0}", "slo.memory_mb"),
        ("slo: {regression: {p99_percent: -1}}", "slo.regression.p99_percent"),
        ("slo: {regression: {throughput_percent: 1001}}", "slo.regression.throughput_percent"),
        ("slo: {regression: {score: -0.1}}", "slo.regression.score"),
        ("search: {time_budget_s: 1}", "search.time_budget_s"),
        ("search: {max_batch: []}", "search.max_batch"),
        ("search: {max_batch: [1, 0]}", "search.max_batch.1"),
        ("search: {queue_delay_us: [-1]}", "search.queue_delay_us.0"),
        ("search: {instances: [65]}", "search.instances.0"),
        ("search: {threads: [0]}", "search.threads.0"),
        ("search: {max_concurrency: 0}", "search.max_concurrency"),
        ("search: {window_ms: 99}", "search.window_ms"),
        ("load: {protocol: udp}", "load.protocol"),
        ("load: {concurrency: [1, 2000]}", "load.concurrency.1"),
        ("load: {window_ms: 1}", "load.window_ms"),
        ("load: {stability_percent: 0}", "load.stability_percent"),
        ("load: {attempts: 0}", "load.attempts"),
        ("load: {comparison_rounds: 0}", "load.comparison_rounds"),
        ("load: {percentile: 42}", "load.percentile"),
        ("load: {batch: 0}", "load.batch"),
        ("load: {batch: 2, shapes: [{input: x}]}", "load"),
        ("load: {seed: x}", "load.seed"),
        ("load: {seed: -1}", "load.seed"),
        ("serving: {labels: cat}", "serving.labels"),
        ("serving: {warmup: maybe}", "serving.warmup"),
        ("serving: {warmup: {from: ones}}", "serving.warmup.from"),
        ("serving: {warmup: {count: 0}}", "serving.warmup.count"),
        ("serving: {preferred_batch_size: [8, 4]}", "serving.preferred_batch_size"),
        ("serving: {warmup: {count: 2}, sequence_batching: {states: {a: b}}}", "serving"),
        ("serving: {priorities: {levels: 2}}", "serving.priorities.default"),
        ("serving: {priorities: {levels: 2, default: 3}}", "serving.priorities"),
        ("serving: {queue: {on_timeout: wait}}", "serving.queue.on_timeout"),
        ("serving: {queue: {timeout_ms: -1}}", "serving.queue.timeout_ms"),
        ("serving: {queue: {timeout_ms: 1.0e+300}}", "serving.queue.timeout_ms"),
        ("serving: {queue: {max_size: 5000000000}}", "serving.queue.max_size"),
        ("serving: {rate_limiter: {resources: {memory: 0}}}", "serving.rate_limiter.resources.memory"),
        ("serving: {rate_limiter: {resources: {memory: 5000000000}}}", "serving.rate_limiter.resources.memory"),
        ("serving: {rate_limiter: {priority: 5000000000}}", "serving.rate_limiter.priority"),
        ("serving: {host_policy: {numa_node: -1}}", "serving.host_policy.numa_node"),
        ("serving: {host_policy: {cpu_cores: 0-99999999999}}", "serving.host_policy.cpu_cores"),
        ("serving: {host_policy: {cpu_cores: all}}", "serving.host_policy.cpu_cores"),
        ("serving: {graph_optimization: max}", "serving.graph_optimization"),
        ("serving: {version_policy: {latest: 0}}", "serving.version_policy.latest"),
        ("serving: {version_policy: {specific: [1]}}", "serving.version_policy.latest"),
        ("serving: {version_policy: newest}", "serving.version_policy"),
        ("slo: {5: 1}", "slo.5"),
    ],
)
def test_a_wrong_field_is_named_by_its_path(text: str, named: str) -> None:
    with pytest.raises(SpecInvalid) as error:
        parse(text)
    assert error.value.what.startswith(f"{named}: ")


@pytest.mark.parametrize(("policy", "keeps"), [("{latest: 1}", False), ("{latest: 2}", True), ("all", True)])
def test_earlier_versions_are_kept_for_one_target(policy: str, keeps: bool) -> None:
    text = f"serving: {{version_policy: {policy}}}"
    assert parse(text).serving.keeps_versions == keeps
    two = f"{text}\ntargets: [{{name: a}}, {{name: b}}]"
    if not keeps:
        assert len(parse(two).targets) == 2
        return
    with pytest.raises(SpecInvalid, match="the spec has 2 targets, the limit is 1"):
        parse(two)


def test_a_preferred_batch_must_fit_the_search() -> None:
    assert parse("serving: {preferred_batch_size: [4, 32]}").serving.preferred_batch_size == (4, 32)
    with pytest.raises(SpecInvalid, match=r"64 exceeds the largest search\.max_batch, 32"):
        parse("serving: {preferred_batch_size: [4, 64]}")


def test_requests_of_the_load_test_must_fit_every_batch_that_the_search_tries() -> None:
    assert parse("{load: {batch: 8}, search: {max_batch: [8, 32]}}").load.batch == 8
    with pytest.raises(
        SpecInvalid, match=r"load\.batch is 8: leave smaller sizes out of search\.max_batch, which has 1"
    ):
        parse("load: {batch: 8}")
    with pytest.raises(SpecInvalid, match=r"load\.batch is 8, the limit is 1"):
        parse("{load: {batch: 8}, search: {max_batch: [8]}, serving: {sequence_batching: {states: {a: b}}}}")


@pytest.mark.parametrize(
    ("text", "warm_up"),
    [
        ("{}", Warmup()),
        ("{warmup: true}", Warmup()),
        ("{warmup: false}", None),
        ("{warmup: {}}", Warmup()),
        ("{warmup: {from: zeros, count: 7}}", Warmup(source="zeros", count=7)),
        ("{sequence_batching: {states: {a: b}}}", None),
    ],
)
def test_a_warm_up_is_told_in_full_or_by_true_and_false(text: str, warm_up: Warmup | None) -> None:
    spec = parse(f"serving: {text}")
    assert spec.serving.warm_up == warm_up
    assert ReleaseSpec.model_validate_json(spec.model_dump_json()) == spec


def test_every_wrong_field_is_named_at_once() -> None:
    with pytest.raises(SpecInvalid) as error:
        parse("{slo: {p99_ms: -1}, load: {attempts: 0}, quality: {min_score: x}}")
    assert all(f"{path}: " in error.value.what for path in ("slo.p99_ms", "load.attempts", "quality.min_score"))


def test_the_message_shows_the_value_that_is_wrong() -> None:
    with pytest.raises(SpecInvalid, match=r"slo\.p99_ms: input should be greater than 0, not -3"):
        parse("slo: {p99_ms: -3}")


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("slos: {}", "slo"),
        ("slo: {p99: 5}", "p99_ms"),
        ("slo: {regression: {p99_procent: 5}}", "p99_percent"),
        ("quality: {parity: {maxabs: 1}}", "max_abs"),
        ("targets: [{nmae: a}]", "name"),
        ("serving: {priorities: {level: 1, default: 1}}", "levels"),
    ],
)
def test_an_unknown_field_comes_with_the_one_that_was_meant(text: str, meant: str) -> None:
    with pytest.raises(SpecInvalid, match=f"there is no such field; did you mean '{meant}'"):
        parse(text)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("quality: {metric: f1}", "quality.metric: there is no such field; did you mean `data.metric`?"),
        (
            "targets: [{name: a, precisions: [int4]}]",
            "targets.0.precisions.0: input should be 'fp32', 'fp16', 'bf16', 'int8' or 'fp8', not 'int4'",
        ),
    ],
)
def test_a_wrong_field_is_told_once_and_with_its_place(text: str, told: str) -> None:
    with pytest.raises(SpecInvalid) as error:
        parse(text)
    assert error.value.what == told
    assert "?." not in str(error.value)


def test_an_unknown_field_like_no_other_is_told_beside_those_that_there_are() -> None:
    with pytest.raises(SpecInvalid) as error:
        parse("zzzzzz: 1")
    assert error.value.what.startswith("zzzzzz: there is no such field; there are model, targets, admission, ")


@pytest.mark.parametrize(
    "text",
    [
        "quality: {min_score: 1.01}",
        "{data: {metric: f1}, quality: {min_score: 95}}",
        "{data: {metric: mae}, quality: {min_score: -0.1}}",
    ],
)
def test_a_budget_that_no_model_can_reach_is_refused(text: str) -> None:
    with pytest.raises(SpecInvalid, match=r"quality.min_score .* can't be reached"):
        parse(text)


def test_a_mean_error_may_be_larger_than_one() -> None:
    assert parse("{data: {metric: mae}, quality: {min_score: 12}}").quality.min_score == 12


def test_one_postprocessing_step_needs_no_list() -> None:
    assert parse("export: {postprocess: softmax}").export.postprocess == ("softmax",)


def test_a_text_that_is_too_large_is_refused_before_it_is_parsed() -> None:
    with pytest.raises(SpecInvalid, match=f"has {MAX_SPEC_BYTES + 2} bytes, the limit is {MAX_SPEC_BYTES}"):
        parse("# " + "x" * MAX_SPEC_BYTES)


@pytest.mark.parametrize(("text", "kind"), [("- a", "list"), ("spec", "str"), ("5", "int"), ("false", "bool")])
def test_what_is_not_a_mapping_is_refused_with_what_it_is(text: str, kind: str) -> None:
    with pytest.raises(SpecInvalid, match=f"the spec is a {kind}"):
        parse(text)


def test_a_syntax_error_is_told_with_its_line() -> None:
    with pytest.raises(SpecInvalid, match=r"not YAML.*line 2"):
        parse("slo:\n  p99_ms: [5\n")


@pytest.mark.parametrize(
    "text",
    [
        "model: 2024-13-45",
        "slo: {failures: " + "9" * 5000 + "}",
        "[" * 1000,
        "slo: " + "[" * 1000 + "]" * 1000,
        "slo: {p99_ms: " + "{a: " * 1000 + "1" + "}" * 1000 + "}",
        "model: \x00",
        "? [a]\n: b",
        "!!python/object/apply:os.system [id]",
    ],
    ids=["no such date", "long number", "deep", "deep list", "deep mapping", "nul", "list as key", "python object"],
)
def test_yaml_that_breaks_its_parser_is_an_invalid_spec_and_no_crash(text: str) -> None:
    with pytest.raises(SpecInvalid):
        parse(text)


@pytest.mark.timeout(5)
def test_aliases_that_multiply_do_not_fill_the_message() -> None:
    """A few hundred bytes of YAML can stand for gigabytes (the "billion laughs")."""
    levels = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    levels += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, 8)]
    with pytest.raises(SpecInvalid) as error:
        parse("\n".join([*levels, "slo: {p99_ms: *a7}"]))
    assert "has the anchor &a0, line 1, column 5, which is not allowed" in error.value.what
    assert len(error.value.what) < 200


_scalars = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20) | st.dates()
_trees = st.recursive(
    _scalars, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=12), inner, max_size=4)
)
_sections = st.dictionaries(st.sampled_from([*ReleaseSpec.model_fields, "other"]), _trees, max_size=4)


@given(_sections)
def test_any_yaml_is_a_spec_or_an_error_that_says_why(body: dict[str, Any]) -> None:
    try:
        parsed = parse(yaml.safe_dump(body))
    except SpecInvalid as error:
        assert error.what  # noqa: PT017 - either is right
    else:
        assert isinstance(parsed, ReleaseSpec)


@given(st.text(alphabet=st.characters(exclude_categories=["Cs"])))
def test_any_text_is_a_spec_or_an_error_that_says_why(text: str) -> None:
    try:
        assert isinstance(parse(text), ReleaseSpec)
    except SpecInvalid as error:
        assert error.what  # noqa: PT017 - either is right


_positive = st.none() | st.floats(min_value=1e-3, max_value=1e6) | st.integers(1, 10_000)
_specs = st.fixed_dictionaries(
    {},
    optional={
        "slo": st.fixed_dictionaries(
            {}, optional={"p99_ms": _positive, "throughput_per_s": _positive, "memory_mb": _positive}
        ),
        "search": st.fixed_dictionaries(
            {},
            optional={
                "max_batch": st.lists(st.integers(1, 4096), min_size=1, max_size=4),
                "time_budget_s": st.integers(2, 100) | st.floats(2, 86400),
            },
        ),
        "quality": st.fixed_dictionaries({}, optional={"min_score": st.none() | st.floats(0, 1) | st.integers(0, 1)}),
        "serving": st.fixed_dictionaries(
            {},
            optional={
                "labels": st.lists(st.text(max_size=8), max_size=3),
                "rate_limiter": st.none() | st.just({"resources": {"r": 1}}),
            },
        ),
    },
)


@given(_specs)
def test_a_spec_written_down_and_read_again_is_the_same(body: dict[str, Any]) -> None:
    text = yaml.safe_dump(body, allow_unicode=True)
    if set("\x85\u2028\u2029") & set(text):  # PyYAML would write these line breaks as they are, and read others
        text = yaml.safe_dump(body)
    first = parse(text)
    assert parse(yaml.safe_dump(first.model_dump(mode="json"))) == first
    assert document.validate(body) == first


@pytest.mark.parametrize("text", ["slo: {p99_ms: 5}\nslo: {p99_ms: 50}", "slo:\n  p99_ms: 5\n  p99_ms: 50"])
def test_a_key_given_twice_is_an_error_and_not_the_last_of_them(text: str) -> None:
    with pytest.raises(SpecInvalid, match=r"the key '(slo|p99_ms)' appears twice"):
        parse(text)


# --- what authors could do to a parser ---


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: &x 1\nb: *x", "the anchor &x, line 1"),
        ("slo: *x", "the alias *x, line 1"),
        ("slo:\n  <<: {p99_ms: 5}", "the merge `<<`, line 2"),
        ("slo: !!python/name:os.system {}", "the tag tag:yaml.org,2002:python/name:os.system, line 1"),
        ("slo: {p99_ms: !!float '1'}", "the tag tag:yaml.org,2002:float"),
        ("slo: {failures: " + "1:" * 50000 + "1}", "a number of 100001 characters, the limit is 64, line 1"),
        ("load: {attempts: 0x" + "f" * 5000 + "}", "a number of 5002 characters, the limit is 64"),
        ("a: " + "[" * 40 + "]" * 40, "nesting deeper than 32 levels, line 1"),
        ("slo: {p99_ms: 5, p99_ms: 6}", "the key 'p99_ms' appears twice"),
        ("# " + "x" * MAX_SPEC_BYTES, f"the limit is {MAX_SPEC_BYTES}"),
    ],
)
def test_what_makes_yaml_expensive_is_refused_with_its_line(text: str, message: str) -> None:
    started = time.monotonic()
    with pytest.raises(SpecInvalid) as error:
        parse(text)
    assert message in error.value.what
    assert time.monotonic() - started < 60


def number_fields(kind: type[Record], path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """The paths of every field below a record that takes a number and no boolean."""
    for name, field in kind.model_fields.items():
        kinds = _kinds(field.annotation)
        records = [inner for inner in kinds if isinstance(inner, type) and issubclass(inner, Record)]
        for inner in records:
            yield from number_fields(inner, (*path, name))
        if not records and kinds & {int, float} and bool not in kinds:
            yield (*path, name)


# They have required fields: see `test_a_bake_has_plain_numbers` and `test_a_shadow_has_plain_numbers`.
IN_FULL = (("promotion", "bake"), ("promotion", "shadow"))
NUMBERS = sorted(path for path in set(number_fields(ReleaseSpec)) if path[:2] not in IN_FULL)


def test_the_spec_has_numbers_to_try() -> None:
    assert ("slo", "p99_ms") in NUMBERS
    assert len(NUMBERS) > 50


NO_NUMBERS: list[tuple[Any, str]] = [
    (True, "must not be true"),
    (False, "must not be false"),
    (float("inf"), "must be a finite number"),
    (float("nan"), "must be a finite number"),
    (10**30, "too large a number"),
    (-(10**30), "too large a number"),
    ([True], "must not be true"),
    ({"a": True}, "must not be true"),
]


def _complaint(body: dict[str, Any]) -> str:
    try:
        document.validate(body)
    except SpecInvalid as error:
        return error.what
    return ""


def test_no_number_of_the_spec_is_a_boolean_infinite_or_absurd() -> None:
    wrong = {}
    for path in NUMBERS:
        for value, problem in NO_NUMBERS:
            said = _complaint(_body(ReleaseSpec, path, value))
            wanted = (f"{path[-1]}: {problem}", f"{path[-1]}: is {problem}")
            if not any(words in part for part in said.split("; ") for words in wanted):
                wrong[".".join(path), repr(value)] = said or "it was accepted"
    assert not wrong


@pytest.mark.parametrize(
    "bake",
    [
        "for: .inf",
        "for: true",
        "for: 0s",
        "for: 31d",
        "for: 1y",
        "for: ''",
        "for: 1h, silence: .nan",
        "for: 1h, confidence_percent: true",
        "for: 1h, alarms: []",
        "for: 1h, alarms: [p99]",
        "for: 1h, alarms: [anything]",
        "for: 1h, alarms: [{kind: errors, limit_percent: .nan}]",
        "for: 1h, alarms: [{kind: p99, limit_ms: true}]",
        "for: 1h, alarms: [{kind: query, query: up}]",
        "for: 1h, alarms: [{kind: query, query: up, above: .inf}]",
        "for: 1h, alarms: [{kind: query, query: up, above: 1, below: 2}]",
    ],
)
def test_a_bake_has_plain_numbers(bake: str) -> None:
    with pytest.raises(SpecInvalid, match=r"promotion\.bake"):
        parse(f"promotion: {{bake: {{{bake}}}}}")


@pytest.mark.parametrize(
    "shadow",
    [
        "share: 0.2",
        "for: true",
        "for: 25h",
        "for: 1h, share: 0",
        "for: 1h, share: 1.1",
        "for: 1h, min_requests: 0",
        "for: 1h, if_fewer: perhaps",
        "for: 1h, errors_percent: .nan",
        "for: 1h, p99_ms: true",
        "for: 1h, agreement_percent: 101",
        "for: 1h, agreement_percent: {label: true}",
    ],
)
def test_a_shadow_has_plain_numbers(shadow: str) -> None:
    with pytest.raises(SpecInvalid, match=r"promotion\.shadow"):
        parse(f"promotion: {{shadow: {{{shadow}}}}}")


@pytest.mark.parametrize(
    ("text", "seconds"), [("90", None), ("90s", 90), ("15m", 900), ("1h30m", 5400), ("2d", 172800), ("1h-1m", None)]
)
def test_durations(text: str, seconds: float | None) -> None:
    if seconds is None:
        with pytest.raises(ValueError, match="must be a duration such as 90s"):
            seconds_of(text)
    else:
        assert seconds_of(text) == seconds
        assert in_short(seconds) == ("1m" if text == "90s" else text)


def _body(kind: type[Record], path: tuple[str, ...], value: Any) -> dict[str, Any]:
    """A spec with a value at a path, in lists and mappings where the spec has them."""
    name, *rest = path
    if not rest:
        return {name: value}
    annotation = kind.model_fields[name].annotation
    inner = next(
        k for k in _kinds(annotation) if isinstance(k, type) and issubclass(k, Record) and rest[0] in k.model_fields
    )
    below: Any = _body(inner, tuple(rest), value)
    text = str(annotation)
    return {
        name: [below]
        if text.startswith(("tuple", "typing.Annotated[tuple"))
        else {"x": below}
        if text.startswith("dict")
        else below
    }
