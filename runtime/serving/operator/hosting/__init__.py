"""Where a service's requests are answered: by its own pods or by a shared server, and how they move; all pure.

A new revision always starts on pods of its own, and its rollout is that of any other. Once it has proved itself there,
it may share. Each service moves on its own, by the selector of its Service, once its golden requests are answered right
on the shared server. What goes wrong there gets pods of its own again.
"""
