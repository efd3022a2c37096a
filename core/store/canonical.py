"""One text for one value, and its hash: what keys are made of."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

_ENCODER = json.JSONEncoder(sort_keys=True, separators=(",", ":"), allow_nan=False)


def canonical(value: Any) -> str:
    """JSON with sorted keys and no spare spaces; refuses NaN."""
    return _ENCODER.encode(value)


def joined(texts: Mapping[str, str]) -> str:
    """The canonical JSON of an object from that of its values, by name: what stands in several hashes is written once."""
    return f"{{{','.join(f'{canonical(name)}:{texts[name]}' for name in sorted(texts))}}}"


def key_of(value: Any) -> str:
    """Hex sha256 of the canonical JSON."""
    return sha256_of(canonical(value))


def sha256_of(text: str) -> str:
    """Hex sha256 of a text."""
    return hashlib.sha256(text.encode()).hexdigest()
