"""Production's requests and answers, kept as files: the ring that they come from, the files, and their deletion."""
