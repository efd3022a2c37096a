"""Worlds in front of the trained attacks."""

from worlds import rich_world, taught

__all__ = ["rich_world", "taught"]
