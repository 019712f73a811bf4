"""Records that differ by kind of model: what was declared, and what was exported."""
