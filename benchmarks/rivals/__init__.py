"""Servers that a competent team would write by hand for the same models; each file is a whole server."""
