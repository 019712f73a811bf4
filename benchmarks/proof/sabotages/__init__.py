"""Ways to sabotage an export's files, each of which changes what it answers to some row."""
