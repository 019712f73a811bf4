"""Servers with the models of several services: who shares which, and how requests move there and back; all pure.

A new revision always starts on pods of its own, and its rollout is that of any other. Once it has proved itself there,
it may share: the operator starts a server with another set of models beside the present ones, and each service moves
on its own, by the selector of its Service, once its golden requests are answered right there. What goes wrong on a
shared server gets pods of its own again.
"""
