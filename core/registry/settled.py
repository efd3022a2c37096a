"""What a component sets for the whole process while it is imported or made reaches no other."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def settled() -> Iterator[None]:
    """torch's default dtype, say, is afterwards what it was. Nothing where torch has not been imported: nobody computes there."""
    if "torch" not in sys.modules:
        yield
        return
    from fedbench.core.apart.global_state import kept

    with kept():
        yield
