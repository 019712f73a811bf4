"""The `shiplift` command: one file per command, named after it, in folders by what they are about."""
