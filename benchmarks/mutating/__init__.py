"""What `make mutants` does: small changes of the code, one at a time, that the unit tests should notice."""
