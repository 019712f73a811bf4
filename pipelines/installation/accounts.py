"""The accounts of the MLflow server that Shiplift installs on a cluster: those of Shiplift's parts, and of people.

    python -m shiplift.pipelines.installation.accounts ensure /accounts    # in MLflow's pod, before the server starts
    python -m shiplift.pipelines.installation.accounts add ana             # by kubectl exec in that pod, for a person

MLflow's basic authentication checks requests. This module writes the accounts with MLflow's own store, directly into
its database, so that no password is sent or shown. Shiplift's parts get their passwords from Secrets: to change one,
change the Secret and restart MLflow's pod.

Every account may read. The releases' account may change every model and run. A person's account may change what that
person registered or logged, and so may the account of git pushes, which registers services.
"""

import argparse
import secrets
import sys
from pathlib import Path
from typing import Any

from shiplift.runtime.base.errors import ShipliftError, UsageError
from shiplift.runtime.store.registry.client import prepare_environment

ADMIN, RELEASE, READER, PUSH = "shiplift-admin", "shiplift-release", "shiplift-reader", "shiplift-push"
USERNAME, PASSWORD = "MLFLOW_TRACKING_USERNAME", "MLFLOW_TRACKING_PASSWORD"
_WORKSPACE = "default"  # the workspace of a server that has no others
# A release writes tags and aliases of any version, and records in the run that logged it, whoever owns that. Only an
# account that may manage a model can remove an alias.
_GRANTS = (("registered_model", "MANAGE"), ("experiment", "EDIT"))


def ensure(folder: Path) -> None:
    """Creates or updates the accounts in `folder`, which has a subfolder per account with a user name and a password.

    Raises:
        UsageError: a file is missing or empty.
    """
    store = _store()
    for account in sorted(path for path in folder.iterdir() if not path.name.startswith(".")):
        name, password = _read(account / USERNAME), _read(account / PASSWORD)
        _set(store, name, password, admin=name == ADMIN)
        if name == RELEASE:
            _grant(store, name)


def add(name: str) -> str:
    """Creates a person's account, or gives it a new password; returns the password.

    Raises:
        UsageError: the account belongs to one of Shiplift's parts.
    """
    if name in (ADMIN, RELEASE, READER, PUSH):
        raise UsageError(f"{name!r} is one of Shiplift's own accounts", do="Choose another name.")
    password = secrets.token_urlsafe(18)
    _set(_store(), name, password, admin=False)
    return password


def _store() -> Any:
    prepare_environment()
    from mlflow.server.auth.config import read_auth_config  # noqa: PLC0415 - takes seconds
    from mlflow.server.auth.sqlalchemy_store import SqlAlchemyStore  # noqa: PLC0415

    store = SqlAlchemyStore()
    store.init_db(read_auth_config().database_uri)
    return store


def _set(store: Any, name: str, password: str, *, admin: bool) -> None:
    if not store.has_user(name):
        store.create_user(name, password, is_admin=admin)
    elif not store.authenticate_user(name, password):
        store.update_user(name, password=password)


def _grant(store: Any, name: str) -> None:
    """Gives an account a role, named after it, that covers all models and runs."""
    user = store.get_user(name)
    if any(role.name == name for role in store.list_roles([_WORKSPACE])):
        return
    role = store.create_role(name, _WORKSPACE)
    for kind, permission in _GRANTS:
        store.add_role_permission(role.id, kind, "*", permission)
    store.assign_role_to_user(user.id, role.id)


def _read(file: Path) -> str:
    text = file.read_text().strip() if file.is_file() else ""
    if not text:
        raise UsageError(f"{file} is missing or empty", do="Run `shiplift install` again: it creates the Secrets.")
    return text


def main() -> None:
    """Reads the command line; exits with the error's own exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("ensure").add_argument("folder", type=Path)
    commands.add_parser("add").add_argument("name")
    options = parser.parse_args()
    try:
        if options.command == "ensure":
            ensure(options.folder)
        else:
            print(add(options.name))
    except ShipliftError as error:
        print(f"{error.title}: {error}", file=sys.stderr)
        sys.exit(error.exit_code)


if __name__ == "__main__":
    main()
