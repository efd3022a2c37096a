"""Where data lies on this machine."""

from __future__ import annotations

import os
from pathlib import Path


def data_folder() -> Path:
    """Where local data sets are looked for: ``$FEDBENCH_DATA``, else ``fedbench`` in the user's cache folder."""
    chosen = os.environ.get("FEDBENCH_DATA")
    return Path(chosen).expanduser() if chosen else cache_folder()


def cache_folder() -> Path:
    """``fedbench`` in the user's cache folder."""
    cache = os.environ.get("XDG_CACHE_HOME")
    return (Path(cache) if cache else Path.home() / ".cache") / "fedbench"


def decoded_folder() -> Path:
    """Where decoded images are cached, beside the data; safe to delete at any time."""
    return data_folder() / ".decoded"
