"""What is around a graph: texts or images in, labels, tokens or pixels out. In a package each is `front.py`."""
