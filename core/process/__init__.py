"""Plugin code in processes of its own: forked, watched, ended; only data come back."""
