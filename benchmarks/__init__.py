"""Figures, each by one command; see the Makefile."""
