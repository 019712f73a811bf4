"""The process that holds requests to services that have no pod, until one is ready."""
