"""Limits of encoded images, as fronts import them in packages."""

from shiplift.runtime.guest.fronts.encoded import FORMATS as FORMATS
from shiplift.runtime.guest.fronts.encoded import MAGIC as MAGIC
from shiplift.runtime.guest.fronts.encoded import BadImage as BadImage
from shiplift.runtime.guest.fronts.encoded import Metered as Metered
from shiplift.runtime.guest.fronts.encoded import check_work as check_work
from shiplift.runtime.guest.fronts.encoded import scans_of as scans_of
