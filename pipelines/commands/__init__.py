"""The `shiplift` command: one file per subcommand, named after it, in folders by topic."""
