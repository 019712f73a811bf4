"""Commands about the stack: start and stop it, look at it, read its logs, check the machine under it."""
