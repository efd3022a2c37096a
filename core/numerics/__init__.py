"""The mathematics under everything: flat vectors, normalisation, precision, per-sample gradients,
keyed randomness.
"""
