"""Monitoring: the objects that the operator makes so that people can see what a service does."""
