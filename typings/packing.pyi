"""`graphs/packing.py`, as it is called in packages."""

from shiplift.runtime.guest.graphs.packing import pack_each as pack_each
from shiplift.runtime.guest.graphs.packing import unpack_each as unpack_each
