"""Code that leaves Shiplift: it is copied into packages, bundles and images, and runs there without the rest.

The docstring of each file ends with where it runs. `Process` is what runs it, and by which name it lies there, beside
which others. `Python` is one of four: the server's (the bundled server's environment, or NVIDIA's image), the model's
(an environment of its own), that of NVIDIA's image, or the image's (whatever an image has, without any packages).
`Packages` are all that it may import besides the standard library and the files beside it, which it imports by the
names that they have there (`typings/` tells mypy what these are). Tests hold it to that, and run each file there.

It never imports Shiplift. The host may import it: the same front that serves a model also proves it, and names of files
and fields are written down once.
"""
