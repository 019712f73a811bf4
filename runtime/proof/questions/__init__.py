"""What to ask a model, so that a wrong form of it gives itself away. Pure: records and arrays in, arrays out."""
