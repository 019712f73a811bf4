"""The pure parts of `make bench`, and its load generator against real sockets."""

import json
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from benchmarks import load, ratios
from benchmarks.plot import draw
from benchmarks.ratios import OURS, Facts, Goal, Window, cells, goals, growth, percentile, rounded
from benchmarks.server_comparison import Results, added, incomplete, table, write


def window(side: str, concurrency: int, round_: int, throughput: float, p99: float, **more: Any) -> Window:
    fields = {
        "p50_ms": p99 / 2,
        "requests": 100,
        "errors": 0,
        "client_cores": 0.1,
        "others_cores": 0.0,
        "server_cores": {"server": 1.5},
        "server_cpu_ms": 0.5,
    }
    return Window(
        side=side, concurrency=concurrency, round=round_, throughput_per_s=throughput, p99_ms=p99, **fields | more
    )


def rounds(side: str, pairs: list[tuple[float, float]], concurrency: int = 16) -> list[Window]:
    return [window(side, concurrency, number, *pair) for number, pair in enumerate(pairs)]


# --- arithmetic -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("share", "value"), [(50, 50), (99, 99), (99.5, 100), (100, 100), (1, 1)])
def test_percentile_is_the_nearest_rank(share: float, value: int) -> None:
    assert percentile(list(range(100, 0, -1)), share) == value


def test_the_percentile_of_one_value_is_that_value_and_of_none_an_error() -> None:
    assert percentile([7.0], 99) == 7.0
    with pytest.raises(ValueError, match="no values"):
        percentile([], 50)


def test_rounding_keeps_four_digits() -> None:
    assert [rounded(value) for value in (123456.0, 0.00123456, 0.0)] == [123500.0, 0.001235, 0.0]


def test_ratios_are_ours_over_theirs_paired_by_round() -> None:
    ours = rounds(OURS, [(100, 10), (200, 20), (300, 30)])
    theirs = rounds("flask-torch", [(10, 100), (20, 200), (30, 300)])
    (ratio,) = ratios.ratios("encoder", [*ours, *theirs])
    assert (ratio.model, ratio.against, ratio.concurrency) == ("encoder", "flask-torch", 16)
    assert (ratio.throughput, ratio.p99) == (10.0, 0.1)
    assert ratio.throughput_spread == (10.0, 10.0)


def test_a_round_that_one_side_lacks_is_left_out() -> None:
    ours, theirs = rounds(OURS, [(100, 10), (100, 10)]), rounds("mlflow-serve", [(50, 20)])
    (ratio,) = ratios.ratios("resnet50", [*ours, *theirs])
    assert ratio.throughput == 2.0
    assert ratio.throughput_interval[1] is None  # one round bounds nothing


def test_cells_hold_medians_extremes_and_every_error() -> None:
    windows = [*rounds("x", [(100, 1), (300, 3)]), window("x", 16, 2, 200, 2, errors=2, first_error="HTTP 500")]
    (cell,) = cells("encoder", windows)
    assert (cell.throughput_per_s.median, cell.throughput_per_s.low, cell.throughput_per_s.high) == (200, 100, 300)
    assert (cell.errors, cell.first_error, cell.requests) == (2, "HTTP 500", 300)
    assert cell.server_cores == {"server": 1.5}


# --- goals ----------------------------------------------------------------------------------------------------------


def judged(model: str, windows: list[Window], bare_per_s: float | None = None, bf16: str = "") -> dict[str, Goal]:
    """The goals by their texts, of which those against one side come last."""
    sides = {window.side: "bf16" if window.side == bf16 else "fp32" for window in windows if window.side != OURS}
    known = Facts(
        precisions=sides, bare_per_s=bare_per_s, growth=growth(windows), ceilings={"promoted, batches of 1": 1234.0}
    )
    judgement = goals(ratios.ratios(model, windows), cells(model, windows), {model: known})
    return {goal.goal: goal for goal in judgement}


def test_goals_that_are_met_need_no_limit() -> None:
    judgement = judged("encoder", rounds(OURS, [(60, 1)] * 3) + rounds("flask-torch", [(10, 7)] * 3))
    assert set(judgement) == {
        "at least 6x its throughput at concurrency 16",
        "at most 1/6 of its p99 at concurrency 16",
        "at least 3x the throughput of a rival in fp32 at concurrency 16",
        "throughput never below it beyond noise",
        "p99 never above it beyond noise",
    }
    assert all(goal.met and not goal.limit for goal in judgement.values())


def test_a_missed_goal_says_the_limit_in_measured_words() -> None:
    ours = [window(OURS, 16, number, 40, 3, triton={"queue": 50.0, "mean_batch": 4.0}) for number in range(3)]
    judgement = judged("digits-cnn", ours + rounds("flask-torch", [(10, 7)] * 3))
    missed = judgement["at least 8x its throughput at concurrency 16"]
    assert (missed.measured, missed.met) == (4.0, False)
    for evidence in ("Shiplift 40/s on server 1.50 cores, 0.5 CPU ms per answer", "queue 50", "1234/s"):
        assert evidence in missed.limit


@pytest.mark.parametrize(
    ("model", "throughput", "p99"),
    [("encoder", 6, 6), ("resnet50", 12, 10), ("digits-cnn", 8, None), ("boosting", 8, None)],
)
def test_every_model_has_its_goals_over_flask(model: str, throughput: int, p99: int | None) -> None:
    def of(ours: tuple[float, float]) -> dict[str, bool]:
        windows = [*rounds(OURS, [ours] * 3), *rounds("flask-torch", [(1, 1)] * 3)]
        return {
            text: goal.met for text, goal in judged(model, windows).items() if "of its p99" in text or "its thr" in text
        }

    p99_of = 1 / (p99 or 1)
    texts = {f"at least {throughput}x its throughput at concurrency 16"}
    texts |= {f"at most 1/{p99} of its p99 at concurrency 16"} if p99 else set()
    slightly_more = of((throughput * 1.01, 0.99 * p99_of))
    slightly_less = of((throughput * 0.99, 1.01 * p99_of))
    assert slightly_more == dict.fromkeys(texts, True)
    assert slightly_less == dict.fromkeys(texts, False)


@pytest.mark.parametrize(("model", "count"), [("encoder", 3), ("resnet50", 3), ("digits-cnn", 0), ("boosting", 0)])
def test_compute_bound_models_must_beat_every_fp32_rival_and_the_best_in_bf16(model: str, count: int) -> None:
    rivals = {"triton-default": "fp32", "ray-serve": "fp32", "slow": "bf16", "fast": "bf16"}
    rates = {"triton-default": 10.0, "ray-serve": 11.0, "slow": 5.0, "fast": 16.0}
    windows = rounds(OURS, [(30, 1)] * 3) + [
        window for side, rate in rates.items() for window in rounds(side, [(rate, 1)] * 3)
    ]
    judgement = goals(ratios.ratios(model, windows), cells(model, windows), {model: Facts(precisions=rivals)})
    of_throughput = {goal.against: goal for goal in judgement if "x the throughput of" in goal.goal}
    assert len(of_throughput) == count
    if count:
        met = {side: goal.met for side, goal in of_throughput.items()}
        assert met == {"triton-default": True, "ray-serve": False, "fast": False}
        assert of_throughput["fast"].goal == "at least 2x the throughput of the best rival in bf16 at concurrency 16"
        assert of_throughput["fast"].limit


@pytest.mark.parametrize(("bare", "met"), [(100.0, True), (117.6, True), (118.0, False)])
def test_the_share_of_the_bare_rate_is_a_goal(bare: float, met: bool) -> None:
    goal = judged("boosting", rounds(OURS, [(100, 1)] * 3), bare_per_s=bare)[
        "at least 85% of the engine's bare rate at concurrency 16"
    ]
    assert goal.met is met
    assert goal.measured == rounded(100 / bare)
    assert (f"its engine {bare:.0f}/s" in goal.limit) is not met


def test_a_fall_from_16_to_64_clients_is_missed_and_noise_is_not() -> None:
    text = "no fall from 16 to 64 clients beyond noise"
    few = rounds(OURS, [(100, 1), (101, 1), (99, 1)])
    fallen = judged("encoder", few + rounds(OURS, [(75, 2), (76, 2), (74, 2)], concurrency=64))[text]
    noisy = judged("encoder", few + rounds(OURS, [(95, 2), (120, 2), (90, 2)], concurrency=64))[text]
    assert (fallen.met, fallen.measured) == (False, rounded(75 / 100))
    assert fallen.limit.startswith("at concurrency 64;")
    assert noisy.met
    assert text not in judged("encoder", few)


def test_other_backends_of_shiplift_are_no_rivals() -> None:
    windows = [*rounds(OURS, [(1, 9)] * 3), *rounds("shiplift:old", [(10, 1)] * 3)]
    known = {"boosting": Facts(precisions={})}
    assert goals(ratios.ratios("boosting", windows), cells("boosting", windows), known) == []


def test_noise_is_no_miss_and_a_steady_loss_is() -> None:
    goal = "throughput never below it beyond noise"
    noisy = judged("boosting", rounds(OURS, [(9, 1), (12, 1), (8, 1)]) + rounds("triton-default", [(10, 1)] * 3))
    steady = judged("boosting", rounds(OURS, [(9, 1), (9.1, 1), (8.9, 1)]) + rounds("triton-default", [(10, 1)] * 3))
    assert noisy[goal].met
    assert (steady[goal].met, steady[goal].measured) == (False, 0.9)


def test_every_concurrency_counts_for_never_below() -> None:
    windows = [*rounds(OURS, [(20, 1)] * 3), *rounds("mlflow-serve", [(10, 1)] * 3)]
    windows += [*rounds(OURS, [(5, 2)] * 3, concurrency=1), *rounds("mlflow-serve", [(10, 1)] * 3, concurrency=1)]
    missed = judged("boosting", windows)["throughput never below it beyond noise"]
    assert (missed.met, missed.measured) == (False, 0.5)
    assert missed.limit.startswith("at concurrency 1;")


# --- results --------------------------------------------------------------------------------------------------------


def results() -> Results:
    windows = [*rounds(OURS, [(100, 1), (110, 1)]), *rounds("flask-torch", [(10, 9), (11, 10)])]
    all_ratios, all_cells = ratios.ratios("encoder", windows), cells("encoder", windows)
    judged_goals = goals(all_ratios, all_cells, {"encoder": Facts(precisions={"flask-torch": "fp32"})})
    return Results(machine={"cores": 2}, ratios=all_ratios, cells=all_cells, goals=judged_goals, models={}, method={})


@pytest.mark.slow
def test_the_json_has_what_its_readers_look_for(tmp_path: Path) -> None:
    write(tmp_path / "results" / "serving.json", results())
    written = json.loads((tmp_path / "results" / "serving.json").read_text())
    assert set(written) >= {"machine", "ratios", "goals"}
    assert set(written["ratios"][0]) >= {"model", "against", "concurrency", "throughput", "p99"}
    assert set(written["goals"][0]) >= {"goal", "measured", "met", "limit"}
    assert Results.model_validate(written) == results()
    with pytest.raises(ValidationError, match="extra"):
        Results.model_validate({**written, "more": 1})


def test_the_plot_names_models_and_sides_and_is_the_same_twice(tmp_path: Path) -> None:
    draw(results().cells, tmp_path / "one.svg")
    drawn = (tmp_path / "one.svg").read_text()
    assert drawn.startswith("<?xml")
    assert all(f"<!-- {name} -->" in drawn for name in ("encoder", "flask-torch", "shiplift"))


def test_the_table_has_a_line_per_ratio() -> None:
    lines = table(results().ratios).splitlines()
    assert len(lines) == 2
    assert "flask-torch" in lines[1]
    assert "10.00x" in lines[1]


def test_what_could_not_be_measured_is_reported_and_leaves_the_rest(tmp_path: Path) -> None:
    empty = Results(machine={}, ratios=[], goals=[], cells=[], models={}, method={})
    failed = window("flask-torch", 16, 0, 10, 9, errors=3, first_error="HTTP 500")
    details = {"sides": {"mlflow-serve": {"failed": "no start"}}}
    grown = added(empty, "resnet50", [], {"failed": "refused"})
    write(tmp_path / "serving.json", grown)  # with nothing to draw yet
    grown = added(grown, "encoder", [window(OURS, 16, 0, 100, 1), failed], details)
    assert [(ratio.model, ratio.against) for ratio in grown.ratios] == [("encoder", "flask-torch")]
    assert incomplete(grown) == [
        "resnet50: refused",
        "encoder, mlflow-serve: no start",
        "encoder, flask-torch, 16 clients: 3 requests failed (HTTP 500)",
    ]
    assert incomplete(results()) == []


# --- the load generator ---------------------------------------------------------------------------------------------


@contextmanager
def server(answer: bytes, *, piecewise: bool = False, drop_after: int = 0) -> Iterator[int]:
    """Answers every request with the same bytes; optionally in two pieces, or hanging up after some answers."""
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def talk(link: socket.socket) -> None:
            answered = 0
            with link:
                while link.recv(65536):
                    half = len(answer) // 2 if piecewise else 0
                    for part in (answer[:half], answer[half:]):
                        link.sendall(part)
                    answered += 1
                    if answered == drop_after:
                        return

        def accept() -> None:
            while True:
                try:
                    link, _ = listening.accept()
                except OSError:
                    return
                link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                threading.Thread(target=talk, args=(link,), daemon=True).start()

        threading.Thread(target=accept, daemon=True).start()
        yield int(listening.getsockname()[1])
        listening.shutdown(socket.SHUT_RDWR)


def http(body: bytes, status: str = "200 OK") -> bytes:
    return f"HTTP/1.1 {status}\r\nServer: x\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body


def plan(port: int, **changes: Any) -> load.Plan:
    fields: dict[str, Any] = {"concurrency": 3, "warm_s": 0.01, "window_s": 0.05, "most_s": 5.0, "least": 6}
    fields["requests"] = [b"POST / HTTP/1.1\r\n\r\n"]
    return load.Plan(host="127.0.0.1", port=port, **fields | changes)


@pytest.mark.parametrize("piecewise", [False, True])
def test_every_answer_is_counted_and_checked(*, piecewise: bool) -> None:
    with server(http(b"12345"), piecewise=piecewise) as port:
        counted = load.Generator(plan(port, length=5)).run()
    assert counted.errors == 0
    assert counted.answers >= 6
    assert counted.seconds > 0
    assert len(counted.latencies_us) >= counted.answers - 3  # those sent in the warm-up have none
    assert min(counted.latencies_us) > 0


@pytest.mark.parametrize(
    ("answer", "check", "error"),
    [
        (http(b"1234"), {"length": 5}, "wrong shape"),
        (http(b"[1,2]"), {"commas": 2}, "wrong shape"),
        (http(b"oh no", "500 Internal Server Error"), {}, "HTTP b'500'"),
    ],
)
def test_a_wrong_answer_is_an_error(answer: bytes, check: dict[str, int], error: str) -> None:
    with server(answer) as port:
        counted = load.Generator(plan(port, **check)).run()
    assert counted.errors >= 6
    assert error in counted.first_error


def test_a_server_that_hangs_up_is_an_error_and_not_an_endless_loop() -> None:
    with server(http(b"x"), drop_after=1) as port:
        counted = load.Generator(plan(port)).run()
    assert counted.errors
    assert counted.first_error.startswith("the connection")


def test_large_requests_are_sent_whole(tmp_path: Path) -> None:
    big = b"x" * 3_000_000
    taken: list[int] = []
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def serve() -> None:
            link, _ = listening.accept()
            with link:
                got = 0
                while chunk := link.recv(1 << 16):
                    got += len(chunk)
                    if got == len(big):
                        taken.append(got)
                        got = 0
                        link.sendall(http(b"ok"))

        threading.Thread(target=serve, daemon=True).start()
        (tmp_path / "requests").write_bytes(big)
        fields = {
            "host": "127.0.0.1",
            "port": listening.getsockname()[1],
            "requests": str(tmp_path / "requests"),
            "sizes": [len(big)],
            "concurrency": 1,
            "warm_s": 0,
            "window_s": 0.01,
            "most_s": 10,
            "least": 2,
            "length": 2,
        }
        (tmp_path / "plan").write_text(json.dumps(fields))
        done = subprocess.run(
            [sys.executable, "-S", "-E", load.__file__, str(tmp_path / "plan")],
            capture_output=True,
            text=True,
            check=False,
        )
    assert done.returncode == 0, done.stderr
    counted = json.loads(done.stdout)
    assert counted["errors"] == 0
    assert len(taken) >= 3
