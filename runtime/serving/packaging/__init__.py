"""What is written into a package beside its graph: the files of models in Python, and a model's earlier versions."""
