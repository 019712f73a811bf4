"""OpenAI's API for models that generate text, so that the clients and tools that people have work with Shiplift."""
