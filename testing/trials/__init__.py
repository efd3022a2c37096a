"""A small run of a component of each kind, and everything that it answered there."""
