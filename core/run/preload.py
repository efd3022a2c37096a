"""Imported once by the process that workers are forked from; importing starts no threads and
touches no GPU.
"""

import gc
import os
import signal
from importlib import import_module

from fedbench.core.process.child import end_with_parent

os.environ.pop("PYTHONSAFEPATH", None)  # set for this process, not for what plugins start
end_with_parent()  # even in the middle of the imports below
# Ctrl-C reaches all processes of a terminal; the command answers it
signal.signal(signal.SIGINT, signal.SIG_IGN)

import sklearn.datasets  # noqa: E402, F401 - half a second in every run that loads data with it

import fedbench.core.run.worker  # noqa: E402, F401
from fedbench.core.registry.discovery import own_components  # noqa: E402

# of each run's forks a tenth of a second
for kind, component in own_components():
    if kind in ("attack", "dataset", "defense", "signal"):
        import_module(component.target.partition(":")[0])

# A full collection in a worker would touch all these objects, and so copy every page that they lie
# on.
gc.collect()
gc.freeze()
