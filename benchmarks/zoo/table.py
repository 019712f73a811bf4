"""All cases of the zoo, and README's table of flavors, which is made from them."""

from benchmarks.zoo.cases.tables import TABLES

CASES = (*TABLES,)
