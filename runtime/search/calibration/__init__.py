"""What a machine computes how fast, measured once: which form, instances, threads and batch a search begins with."""
