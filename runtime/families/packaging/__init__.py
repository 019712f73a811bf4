"""What the families share when they package a model: the judge, golden answers, and the making of a package."""
