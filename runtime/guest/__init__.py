"""Code that leaves Shiplift: it is copied into packages, bundles and images, and runs there without the rest.

The docstring of each file ends with where it runs. `Process` is the process that runs it, the file's name there, and
the files beside it. `Python` is one of four: the server's (the bundled server's environment, or NVIDIA's image), the
model's (an environment of its own), that of NVIDIA's image, or the image's (whatever an image has, without any
packages). `Packages` are all that it may import in addition to the standard library and the files beside it, which it
imports by their names there (`typings/` tells mypy what these are). Tests enforce this, and run each file in its place.

This code never imports Shiplift. The host may import it: the same front that serves a model also proves it, and names
of files and fields are written down once.
"""
