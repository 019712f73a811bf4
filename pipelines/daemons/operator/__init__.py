"""The process that keeps the TritonServices of a cluster: it looks, decides and acts, again and again."""
