"""The built-in components, registered through the same entry points as those of other packages."""
