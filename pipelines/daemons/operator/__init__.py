"""The process that manages a cluster's TritonServices: it observes, decides and acts, again and again."""
