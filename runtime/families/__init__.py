"""One folder per kind of model, with what differs between kinds: `family.py` is the protocol, `table.py` the list."""
