"""Imported first by the server that workers are forked from: it ends with its parent, even in the middle of its imports, and
only with it: Ctrl-C, which reaches all processes of a terminal, is the parent's to answer."""

import signal

from fedbench.core.apart.parent import end_with_parent

end_with_parent()
signal.signal(signal.SIGINT, signal.SIG_IGN)  # multiprocessing does so itself, after the imports
