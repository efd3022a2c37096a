"""The round loop: sample, assign, train locally, protect, coordinate, aggregate."""
