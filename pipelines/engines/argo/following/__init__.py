"""Following a release on Argo Workflows: what its pods print, its events, its logs."""
