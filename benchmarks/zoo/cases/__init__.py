"""The cases of the zoo by library; `benchmarks.zoo.table` puts them together."""
