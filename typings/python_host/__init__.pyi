"""The package `python_host` of a package with a model's own process (`model/python/bundle.py`)."""
