"""Other people's code in processes of their own: forked, watched, ended; only data come back."""
