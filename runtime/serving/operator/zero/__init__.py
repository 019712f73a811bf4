"""Scaling to zero: when a service without requests goes to sleep, and when it wakes up. Pure, like all decisions."""
