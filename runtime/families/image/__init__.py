"""Models that take images: a graph of pixels behind their decoding."""
