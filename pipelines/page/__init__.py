"""The live page: models, versions and releases under way in a browser. It asks an engine, and stores nothing."""
