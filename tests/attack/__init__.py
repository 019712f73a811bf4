"""Attacks on what holds hostile code, by family, and each layer switched off once: `make attack`."""
