"""`make bench-proof`: whether the proof refuses what is wrong, keeps what is right, and notices sabotage."""
