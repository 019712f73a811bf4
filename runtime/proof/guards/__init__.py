"""What the original refuses, as guards: proposed by what is known of it, and learned from the rows that it refused."""
