"""Following a release on Argo Workflows: the lines that its pods print, its events, its logs."""
