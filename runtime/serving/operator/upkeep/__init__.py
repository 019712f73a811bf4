"""What keeps a service healthy between rollouts: who is asked whether it answers, and what is replaced or tidied up."""
