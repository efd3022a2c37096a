"""Statistics to figures. Equal records give equal files; matplotlib is imported when something is drawn."""
