import json
import multiprocessing
import stat
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shiplift.runtime.base.errors import HomeNotPrivate
from shiplift.runtime.base.secrets import FILE, Secrets, load_secrets, make_private, sign, signed_by

_parts = st.lists(st.text(max_size=10), max_size=4)


def test_secrets_are_made_once_and_only_their_owner_reads_them(tmp_path: Path) -> None:
    first = load_secrets(tmp_path / "home")
    assert load_secrets(tmp_path / "home") == first
    assert stat.S_IMODE((tmp_path / "home" / FILE).stat().st_mode) == 0o600
    assert len({first.webhook, first.ledger, first.mlflow}) == 3
    assert all(len(secret) >= 32 for secret in json.loads((tmp_path / "home" / FILE).read_text()).values())


def test_every_home_has_secrets_of_its_own(tmp_path: Path) -> None:
    assert load_secrets(tmp_path / "a") != load_secrets(tmp_path / "b")


def _load(home: Path) -> Secrets:
    return load_secrets(home)


def test_processes_that_start_together_get_the_same_secrets(tmp_path: Path) -> None:
    with multiprocessing.get_context("fork").Pool(8) as pool:
        loaded = pool.map(_load, [tmp_path / "home"] * 16, chunksize=1)
    assert len(set(loaded)) == 1
    assert [path.name for path in (tmp_path / "home").iterdir()] == [FILE]


@given(st.text(max_size=20), _parts)
def test_a_signature_is_that_of_its_parts(secret: str, parts: list[str]) -> None:
    assert signed_by(secret, sign(secret, *parts), *parts)


@given(_parts, _parts)
def test_other_parts_have_another_signature_however_they_are_cut(left: list[str], right: list[str]) -> None:
    assert (sign("secret", *left) == sign("secret", *right)) == (left == right)


def test_another_secret_gives_another_signature() -> None:
    assert not signed_by("other", sign("secret", "a"), "a")


@pytest.mark.parametrize("signature", ["", "x", "é", "\ud800", "0" * 64, "0" * 10_000])
def test_what_is_no_signature_is_none(signature: str) -> None:
    assert not signed_by("secret", signature, "a")


def test_a_part_that_is_no_proper_unicode_can_be_signed() -> None:
    assert signed_by("secret", sign("secret", "\ud800"), "\ud800")


def test_a_home_is_its_owner_s_alone(tmp_path: Path) -> None:
    home = tmp_path / "home"
    make_private(home)
    assert home.stat().st_mode & 0o777 == 0o700
    load_secrets(home)
    home.chmod(0o755)
    (home / "secrets.json").chmod(0o644)
    make_private(home)
    assert (home.stat().st_mode & 0o777, (home / "secrets.json").stat().st_mode & 0o777) == (0o700, 0o600)


@pytest.mark.parametrize("mode", [0o775, 0o777, 0o720])
def test_a_home_that_others_can_write_is_refused(tmp_path: Path, mode: int) -> None:
    tmp_path.chmod(mode)
    with pytest.raises(HomeNotPrivate, match=f"can be written by others .mode {mode:04o}.*chmod 700"):
        make_private(tmp_path)
    assert tmp_path.stat().st_mode & 0o777 == mode
