"""Fast tests without services: one file per module. Run them with `pytest tests/unit -n auto`."""
