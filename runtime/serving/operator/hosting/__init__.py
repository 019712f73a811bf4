"""Where a service's requests are answered, by its own pods or by a shared server, and how they move. All pure.

A new revision always starts on its own pods, with a rollout like any other. Once it has proved itself there, it may
share a server. Each service moves separately, by the selector of its Service, once the shared server answers its golden
requests right. A service that has problems there gets its own pods again.
"""
