"""One machine: the processes of its servers, what its production serves, and how a model moves there."""
