"""Parsers of foreign bytes, each fed with a million mutations by Atheris: see `benchmarks/fuzz.py`."""
