"""What a user asks for: the release spec section by section, and what a version was admitted with."""
