"""Attacks that compare one signal of one round with a threshold."""
