"""Committed boards."""
