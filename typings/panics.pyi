"""Panics of libraries in Rust, as fronts import it in packages."""

from shiplift.runtime.guest.fronts.panics import contained as contained
from shiplift.runtime.guest.fronts.panics import panicked as panicked
