"""Blocks to Markdown. Whatever comes out of a record is somebody else's text and is escaped here."""
