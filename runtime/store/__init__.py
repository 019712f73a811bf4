"""Persistence: the registry, artifacts by digest, the signed ledger."""
