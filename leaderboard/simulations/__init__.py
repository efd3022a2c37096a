"""Does an estimator do what it says? Simulations with known truth."""
