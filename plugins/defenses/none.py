"""No defense."""

from __future__ import annotations

from fedbench.core import Defense


class NoDefense(Defense):
    """Plain FedAvg; the baseline of every delta."""
