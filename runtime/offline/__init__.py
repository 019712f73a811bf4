"""Scores datasets that are larger than memory with a promoted package, apart from production.

A dataset has parts. Each becomes one file of the output, written whole or not at all, with a note beside it that says
what was scored, so that a run which was killed goes on where it was.
"""
