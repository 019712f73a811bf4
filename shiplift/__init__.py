"""The one package that is installed. Its rooms are links to the folders at the top of the repository."""
