"""Imported last by the process that workers are forked from: its objects are left out of garbage collection.

A full collection in a worker would touch them all, and so copy every page that they lie on.
"""

from __future__ import annotations

import gc

import sklearn.datasets  # noqa: F401 - half a second in every run that loads data with it

gc.collect()
gc.freeze()
