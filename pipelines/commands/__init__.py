"""The `shiplift` command: one module per subcommand, named after it."""
