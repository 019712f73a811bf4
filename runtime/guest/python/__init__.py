"""Python models: the code that hosts them in Triton, and the process in which the author's code runs."""
