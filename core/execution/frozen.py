"""Imported last by the server of processes: its objects are left out of garbage collection, which would copy their pages."""

import gc

gc.collect()
gc.freeze()
