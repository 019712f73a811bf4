"""What a registered version may contain: every file is read as bytes, and judged by lists of what is allowed."""
