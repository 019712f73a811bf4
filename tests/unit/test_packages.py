"""Packages are installed by uv from where pip would take them."""

import importlib.util
from pathlib import Path

import pytest

_FILE = Path(__file__).parents[2] / ".ci" / "packages.py"
_SPEC = importlib.util.spec_from_file_location("packages", _FILE)
assert _SPEC
assert _SPEC.loader
packages = importlib.util.module_from_spec(_SPEC)
_SPEC.loader.exec_module(packages)


def test_pip_s_settings_are_handed_to_uv() -> None:
    arguments, variables = packages.counterpart(
        [
            "global.index-url='https://packages.example.org/simple'",
            "global.extra-index-url='https://a.example.org/simple\\nfile:///srv/b'",
            ":env:.find-links='/srv/wheels'",
            "install.constraint='/etc/constraints.txt'",
            "global.no-index='false'",
            "global.pre='true'",
            ":env:.cert='/etc/ssl/ca.pem'",
            ":env:.default-timeout='180'",
            "global.disable-pip-version-check='1'",
        ]
    )
    assert arguments == [
        *("--index-url", "https://packages.example.org/simple"),
        *("--extra-index-url", "https://a.example.org/simple"),
        *("--extra-index-url", "file:///srv/b"),
        *("--find-links", "/srv/wheels"),
        *("--constraint", "/etc/constraints.txt"),
        *("--prerelease", "allow"),
    ]
    assert variables == {"SSL_CERT_FILE": "/etc/ssl/ca.pem", "UV_HTTP_TIMEOUT": "180"}


def test_a_setting_without_counterpart_is_left_to_pip() -> None:
    for line in ("global.client-cert='/etc/ssl/client.pem'", "install.require-hashes='true'"):
        with pytest.raises(packages.NotKnownError, match=line.partition("=")[0]):
            packages.counterpart([line])
