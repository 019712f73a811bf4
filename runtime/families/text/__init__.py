"""Models that take texts: a graph of tokens behind a tokenizer."""
