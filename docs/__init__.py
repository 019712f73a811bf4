"""The documentation: pages in Markdown, and what writes the reference out of the code."""
