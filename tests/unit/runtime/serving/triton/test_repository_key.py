"""The key of a server's repository: made once, for its owner's eyes alone."""

from pathlib import Path

from shiplift.runtime.guest.pod.guard import KEY
from shiplift.runtime.serving.triton.repository_key import VARIABLE, key_of, make_key


def test_a_key_is_made_once_and_only_its_owner_reads_it(tmp_path: Path) -> None:
    repository = tmp_path / "models"
    assert key_of(repository) == ""
    key = make_key(repository)
    assert len(key) == 32
    assert make_key(repository) == key_of(repository) == key
    (file,) = tmp_path.iterdir()  # beside the repository, which confined processes may read
    assert file.stat().st_mode & 0o777 == 0o600
    assert make_key(tmp_path / "other" / "models") != key


def test_pods_of_both_servers_get_it_in_the_same_variable() -> None:
    assert KEY == VARIABLE
