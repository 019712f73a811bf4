"""What a package contains besides its graph: the files of models in Python, and a model's earlier versions."""
