"""What families share when they package a model: the judge, the golden answers, and the steps to make a package."""
