"""Where models are served: the protocols of a place, Triton on one machine, and Kubernetes."""
