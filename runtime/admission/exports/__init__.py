"""Exports of models that become no plain graph: proven by their own code, or by tokens."""
