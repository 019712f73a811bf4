"""A challenger's shadow: where it gets copies of the champion's requests, and what is counted of them."""
