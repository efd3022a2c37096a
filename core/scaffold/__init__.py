"""Whole packages from templates: what `fedbench new` writes."""
