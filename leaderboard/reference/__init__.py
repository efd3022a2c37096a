"""Figures published in the papers, as data."""
