"""Arithmetic on one thread: sums in one order, so the same bits wherever it runs."""

from __future__ import annotations

import sys
from contextlib import AbstractContextManager
from functools import cache
from typing import Any

from threadpoolctl import ThreadpoolController


def one_thread() -> AbstractContextManager[Any]:
    """A block in which the libraries behind NumPy's products and scikit-learn's loops use one thread."""
    limits: AbstractContextManager[Any] = _libraries("sklearn" in sys.modules).limit(limits=1)
    return limits


@cache
def _libraries(with_sklearn: bool) -> ThreadpoolController:
    """Looked for once, and again where scikit-learn has brought its own: it takes as long as a small net's training."""
    return ThreadpoolController()
