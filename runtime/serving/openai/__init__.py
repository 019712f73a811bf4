"""OpenAI's API for models that generate text, so that existing clients and tools work with Shiplift."""
