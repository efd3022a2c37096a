"""Canonical JSON and its hash, of which keys are made."""

from __future__ import annotations

import hashlib
import json
from typing import Any

_ENCODER = json.JSONEncoder(sort_keys=True, separators=(",", ":"), allow_nan=False)


def canonical(value: Any) -> str:
    """JSON with sorted keys and no spare spaces; refuses NaN."""
    return _ENCODER.encode(value)


def key_of(value: Any) -> str:
    """Hex sha256 of the canonical JSON."""
    return hashlib.sha256(canonical(value).encode()).hexdigest()
