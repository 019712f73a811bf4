"""What holds for the repository itself: its layout and imports, its documentation, and the tools in `benchmarks/`.

`make check` runs them beside mypy, which keeps one core busy.
"""
