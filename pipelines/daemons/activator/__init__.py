"""The process that holds the requests of services without a pod, until there is one."""
