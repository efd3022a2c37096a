"""Attacks that train a classifier on what a view shows of known members and non-members."""
