"""What the papers claim, a file each, as predicates over the rows of a board; data, no code."""
