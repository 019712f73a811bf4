"""What a competent team would serve the same models with by hand; each file is a whole server."""
