"""Persistence: the registry (the only importer of MLflow), artifacts by digest, the signed ledger."""
