"""What runs in a pod: its command line, the walk over its stages, and the records that go in and out."""
