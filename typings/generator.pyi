"""`generation/generator.py`, as it is called in packages."""

from shiplift.runtime.guest.generation.generator import Generator as Generator
from shiplift.runtime.guest.generation.generator import New as New
