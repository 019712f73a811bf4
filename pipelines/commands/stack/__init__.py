"""Commands for the stack: start and stop it, show its state and logs, check the machine."""
