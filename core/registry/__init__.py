"""Installed plugins, their components, and the digests of their code."""
