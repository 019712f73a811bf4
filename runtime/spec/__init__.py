"""What a user asks for: the release spec, section by section, and the record of an admitted version."""
