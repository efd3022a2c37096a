"""Readable names of runs (which their files have) and of cells, each with the first letters of its
key.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from functools import lru_cache

from fedbench.core.store.record import Record

_MOST_OF_A_NAME = 48  # letters: five names and a key stay below the 255 that a file name may have
STEM = re.compile(r"[A-Za-z0-9=,_-][A-Za-z0-9=.,_-]*--[0-9a-f]{12}")


@lru_cache(maxsize=4096)
def word(name: str) -> str:
    """Return a name with the characters that file names may have."""
    return re.sub(r"[^A-Za-z0-9=.,_-]+", "_", name)[:_MOST_OF_A_NAME]


def unused(name: str, used: Collection[str], between: str) -> str:
    """Return the name, with a number behind ``between`` where it is used."""
    number, free = 1, name
    while free in used:
        number += 1
        free = f"{name}{between}{number}"
    return free


def stem(
    setting: str, coalition: str, defense: str, attack: str | None, seed: int, key: str
) -> str:
    """Return the name of a cell, or of a run's files without a suffix.

    Args:
        attack: of a run the one that takes part in its training.
    """
    attacks = [attack] if attack else []
    names = [setting, coalition, defense, *attacks, f"s{seed}", key[:12]]
    return "--".join(map(word, names))


def names_in(stem: str) -> str:
    """Return the name of a run or a cell without its key."""
    return stem.rpartition("--")[0]


def seed_name(stem: str) -> str:
    """Return ``s0``, the part of the name of a run or a cell that is its seed."""
    return names_in(stem).rpartition("--")[2]


def stem_of_run(record: Record) -> str:
    """Return the name of the files of the record's run."""
    r = record
    attacker = r.described["adversary"]
    return stem(r.setting, r.coalition, r.defense.label, attacker, r.seed, r.run_key)


def stem_in_merged(record: Record) -> str:
    """Return the name of the run's files in a folder where another suite has the same run."""
    return f"{word(record.suite)}--{stem_of_run(record)}"


def stem_of_cell(record: Record) -> str:
    """Return the name of the record's cell."""
    r = record
    return stem(r.setting, r.coalition, r.defense.label, r.attack.label, r.seed, r.key)
