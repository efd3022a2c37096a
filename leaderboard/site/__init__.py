"""Boards as pages of a static site: records -> one JSON document a board (``SCHEMA.md``) -> HTML
that opens from disk.
"""
