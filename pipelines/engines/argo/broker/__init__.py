"""The broker, a sidecar of stages that handle an author's files: it holds their secrets and limits what they may do."""
