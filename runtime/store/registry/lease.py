"""Only one installation at a time releases from a registry. Its lease is the description of its webhook there.

MLflow has one webhook of our name, so an installation that registers it takes the announcements away from the one
before. The description says which installation holds it, since when, and until when. An installation renews its lease
while it runs, and loses it some time after it has stopped.
"""

import socket
import time
from collections.abc import Callable

from pydantic import ValidationError

from shiplift.runtime.base.errors import RegistryDenied, RegistryHeld
from shiplift.runtime.base.text import printable
from shiplift.runtime.records.base import Record
from shiplift.runtime.store.registry.rest import RestRegistry

WEBHOOK = "shiplift"
LASTS_S = 300.0


class LeaseHolder(Record):
    """Which installation releases from a registry, where it runs, and times in seconds since the epoch."""

    holder: str
    place: str
    since: float
    expires_at: float

    def refusal(self, now: float) -> RegistryHeld:
        """The error for any other installation."""
        since, until = (time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(at)) for at in (self.since, self.expires_at))
        return RegistryHeld(
            f"another installation of Shiplift, {printable(self.place, limit=200)} "
            f"({printable(self.holder, limit=40)}), has released from this registry since {since}, "
            f"and holds it until {until} if it has stopped",
            do=f"Stop it, wait {max(1, round(self.expires_at - now))} s, or take over with `shiplift up --take-over` "
            "(on a cluster `shiplift install --take-over`).",
        )


class RegistryLease:
    """The lease of one installation, `holder`, on a registry. `place` says for people where it runs."""

    def __init__(
        self, registry: RestRegistry, holder: str, place: str, *, clock: Callable[[], float] = time.time
    ) -> None:
        self._registry = registry
        self._holder = holder
        self._place = place
        self._clock = clock

    def current(self) -> LeaseHolder | None:
        """The current lease; None if no installation holds the registry."""
        hook = self._registry.webhook(WEBHOOK)
        try:
            return LeaseHolder.model_validate_json(str((hook or {}).get("description") or ""))
        except ValidationError:
            return None

    def check(self) -> None:
        """Checks that no other installation holds the registry.

        Only MLflow's administrators see webhooks. On a cluster that is the reconciler, which checks before it starts
        anything. With any other account this check finds no objection.

        Raises:
            RegistryHeld: another one holds it, and has renewed its lease recently.
            Temporary: the registry does not respond.
        """
        try:
            lease = self.current()
        except RegistryDenied:
            return
        if lease and lease.holder != self._holder and lease.expires_at > self._clock():
            raise lease.refusal(self._clock())

    def renew(
        self, url: str, secret: str, *, lasts_s: float = LASTS_S, take_over: bool = False, secret_changed: bool = True
    ) -> None:
        """Takes or renews the lease, and registers the webhook with it.

        Raises:
            RegistryHeld: another installation holds it, and `take_over` is false.
            Temporary: the registry does not respond.
        """
        now, lease = self._clock(), self.current()
        if lease and lease.holder != self._holder and lease.expires_at > now and not take_over:
            raise lease.refusal(now)
        since = lease.since if lease and lease.holder == self._holder else now
        mine = LeaseHolder(holder=self._holder, place=self._place, since=since, expires_at=now + lasts_s)
        changed = secret_changed or lease is None or lease.holder != self._holder
        self._registry.ensure_webhook(WEBHOOK, url, secret, renew=changed, description=mine.model_dump_json())

    def take_over(self) -> None:
        """Takes the lease from its current holder; the next renewal registers the webhook.

        Raises:
            Temporary: the registry does not respond.
        """
        now = self._clock()
        mine = LeaseHolder(holder=self._holder, place=self._place, since=now, expires_at=now + LASTS_S)
        self._registry.describe_webhook(WEBHOOK, mine.model_dump_json())

    def release(self) -> None:
        """Gives the lease back, so that another installation need not wait for it to expire."""
        lease = self.current()
        if lease and lease.holder == self._holder:
            ended = lease.model_copy(update={"expires_at": self._clock()})
            self._registry.describe_webhook(WEBHOOK, ended.model_dump_json())


def this_host() -> str:
    """This machine's name."""
    return socket.gethostname()
