"""Every attack of every family fails."""

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.attack.families import families
from tests.attack.runner import Place, place


@pytest.fixture(scope="module")
def attacked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    with place(tmp_path_factory.mktemp("attacked")) as attacked:
        yield attacked


def test_there_are_hundreds_of_different_ones() -> None:
    codes = Counter(code for family in families().values() for code in family.values())
    assert len(codes) >= 300


def test_every_attack_fails(attacked: Place, tmp_path: Path) -> None:
    attacks = {name: code for family in families().values() for name, code in family.items()}
    outcomes = attacked.run(attacks)
    assert outcomes.keys() == attacks.keys()
    assert {name: met for name, met in outcomes.items() if met == "done"} == {}
    wrong = ("NameError", "TypeError", "AttributeError", "SyntaxError", "ended by")  # mistakes of the attack's own
    assert {name: met for name, met in outcomes.items() if met.startswith(wrong)} == {}
    assert (attacked.folder / "secrets" / "secret").read_text() == "secret"
    assert (attacked.folder / "model" / "weights").read_text() == "weights"
