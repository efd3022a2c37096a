"""Names of a cell's files, made of what its record says, so that people can read them and nobody can swap them."""

from __future__ import annotations

import re
from functools import lru_cache

from fedbench.core.store.record import Record

_MOST_OF_A_NAME = 48  # letters: five names and a key stay below the 255 that a file name may have
STEM = re.compile(r"[A-Za-z0-9=,_-][A-Za-z0-9=.,_-]*--[0-9a-f]{12}")


@lru_cache(maxsize=4096)
def word(name: str) -> str:
    """A name as it stands in file names."""
    return re.sub(r"[^A-Za-z0-9=.,_-]+", "_", name)[:_MOST_OF_A_NAME]


def stem(setting: str, coalition: str, defense: str, attack: str, seed: int, key: str) -> str:
    """The files' name without a suffix; the key's first letters make it unique."""
    return "--".join(map(word, [setting, coalition, defense, attack, f"s{seed}", key[:12]]))


def stems_of_record(record: Record) -> tuple[str, str]:
    """What the files of a record may be called: as a run calls them or, where a merged folder has the cell in several suites,
    with the suite in front."""
    own = stem(record.setting, record.coalition, record.defense.label, record.attack.label, record.seed, record.key)
    return own, f"{word(record.suite)}--{own}"
