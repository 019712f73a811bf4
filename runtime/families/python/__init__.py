"""Python models: their author's code, in an environment of its own."""
