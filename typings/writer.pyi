"""`generation/writer.py`, as it is called in packages."""

from shiplift.runtime.guest.generation.writer import ORDERS as ORDERS
from shiplift.runtime.guest.generation.writer import PIECES as PIECES
from shiplift.runtime.guest.generation.writer import Writer as Writer
from shiplift.runtime.guest.generation.writer import WriterFailed as WriterFailed
