"""Code that leaves Shiplift: it is copied into packages, bundles and images, and runs there without the rest.

Each file says under `Runs in` which process it runs in, under which Python, and with which packages. So it imports the
standard library, those packages, and the files that lie beside it where it runs, by the names that they have there
(`typings/` tells mypy what these are). It never imports Shiplift. The host may import it: the same front that serves a
model also proves it, and the names of files and fields are written down once.
"""
