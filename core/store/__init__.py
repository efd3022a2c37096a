"""Records on disk: written whole or not at all, never silently replaced."""
