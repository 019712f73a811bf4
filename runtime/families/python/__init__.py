"""Python models: the code of their author, in an environment of its own."""
