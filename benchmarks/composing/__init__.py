"""What `make bench-pipeline` serves in three ways."""
