"""Disables webhooks whose secret was encrypted with another key, before MLflow's server starts.

    python -m shiplift.pipelines.installation.webhook_secrets    # in MLflow's pod, with the server's environment

To list webhooks, MLflow decrypts the secret of each one. Its database can outlive the key: `shiplift uninstall --data`
removes the key, but keeps a database on a separate server or in a folder of the host. A single old webhook would then
make every request about webhooks fail, and a new installation would never become ready. The reconciler enables
Shiplift's own webhook again, with a new secret. Others stay disabled until their owners give them a new secret.
"""

import os
import sys

from shiplift.runtime.base.errors import UsageError

DATABASE, KEY = "MLFLOW_BACKEND_STORE_URI", "MLFLOW_WEBHOOK_SECRET_ENCRYPTION_KEY"


def disable_unreadable(database: str, key: str) -> tuple[str, ...]:
    """Disables the webhooks whose secrets `key` can't decrypt, and removes those secrets; returns the names.

    Args:
        database: SQLAlchemy's URL of the registry's database, which may still be empty.
        key: a Fernet key, 32 bytes in URL-safe base64.

    Raises:
        UsageError: `key` is not a Fernet key.
    """
    import sqlalchemy as sa  # noqa: PLC0415 - comes with MLflow
    from cryptography.fernet import Fernet, InvalidToken  # noqa: PLC0415

    try:
        cipher = Fernet(key)
    except ValueError as error:
        raise UsageError(f"{KEY} is not a Fernet key: {error}", do="Run `shiplift install` again.") from error

    def unreadable(secret: str) -> bool:
        try:
            cipher.decrypt(secret.encode())
        except InvalidToken:
            return True
        return False

    engine = sa.create_engine(database)
    try:
        if not sa.inspect(engine).has_table("webhooks"):
            return ()
        hooks = sa.table("webhooks", *map(sa.column, ("webhook_id", "name", "secret", "status")))
        with engine.begin() as connection:
            rows = connection.execute(sa.select(hooks).where(hooks.c.secret.is_not(None))).all()
            lost = [row for row in rows if unreadable(row.secret)]
            ids = hooks.c.webhook_id.in_([row.webhook_id for row in lost])
            connection.execute(sa.update(hooks).where(ids).values(secret=None, status="DISABLED"))
        return tuple(sorted(row.name for row in lost))
    finally:
        engine.dispose()


def main() -> None:
    """Reads the server's environment, and prints which webhooks it disabled."""
    for name in disable_unreadable(os.environ[DATABASE], os.environ[KEY]):
        print(f"webhook {name!r} is disabled: another installation's key encrypted its secret", file=sys.stderr)


if __name__ == "__main__":
    main()
