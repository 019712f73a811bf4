"""Commands about releases: order, watch, stop and undo them, read and judge past ones, ask what was promoted."""
