"""A person's order to abort a promotion, as an error of its release."""

import getpass

from shiplift.runtime.base.errors import Aborted
from shiplift.runtime.records.promotion import Abort


def aborted(order: Abort, model: str, version: int) -> Aborted:
    """The error with which a release ends that a person aborted."""
    do = f"The champion has all the traffic. `shiplift rerun {model}/{version}` releases the version again."
    return Aborted(order.sentence, do=do)


def this_user() -> str:
    """The name of the person who runs this process, as the operating system knows it."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a user id without a name, as in many containers
        return "someone"
