"""`python/host.py`, as it is called in packages."""

from shiplift.runtime.guest.python.host import Died as Died
from shiplift.runtime.guest.python.host import Host as Host
from shiplift.runtime.guest.python.host import ModelFailed as ModelFailed
from shiplift.runtime.guest.python.host import Raised as Raised
from shiplift.runtime.guest.python.host import Starting as Starting
from shiplift.runtime.guest.python.host import TookTooLong as TookTooLong
from shiplift.runtime.guest.python.host import UsedTooMuch as UsedTooMuch
from shiplift.runtime.guest.python.host import rows as rows
from shiplift.runtime.guest.python.host import split as split
