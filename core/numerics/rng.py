"""Keyed randomness: every draw comes from a generator named by (seed, purpose, round, client); none
is global.
"""

from __future__ import annotations

import hashlib

import numpy as np


def key_for(
    seed: int,
    purpose: str,
    round: int = 0,
    client: int = 0,
) -> int:
    """A 64-bit integer key: equal arguments give equal keys on every machine, different ones
    independent streams.
    """
    text = f"fedbench:{seed}:{purpose}:{round}:{client}"
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "little")


def numpy_rng(
    seed: int,
    purpose: str,
    round: int = 0,
    client: int = 0,
) -> np.random.Generator:
    """numpy generator of that key."""
    return np.random.Generator(np.random.Philox(key_for(seed, purpose, round, client)))
