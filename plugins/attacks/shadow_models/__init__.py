"""Attacks that compare the final model with shadow (reference) models."""
