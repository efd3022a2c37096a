"""Imported first by the server that workers are forked from: it ends with its parent, even in the middle of its imports, and
only with it: Ctrl-C, which reaches all processes of a terminal, is the parent's to answer."""

from __future__ import annotations

import signal

from fedbench.core.process.child import end_with_parent

end_with_parent()
signal.signal(signal.SIGINT, signal.SIG_IGN)  # multiprocessing does so itself, after the imports
