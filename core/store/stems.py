"""Readable names of runs (which their files have) and of cells, each with the first letters of its
key.
"""

from __future__ import annotations

import re
from functools import lru_cache

from fedbench.core.store.record import Record

_MOST_OF_A_NAME = 48  # letters: five names and a key stay below the 255 that a file name may have
STEM = re.compile(r"[A-Za-z0-9=,_-][A-Za-z0-9=.,_-]*--[0-9a-f]{12}")


def run_stem(
    setting: str, coalition: str, defense: str, attacker: str | None, seed: int, run_key: str
) -> str:
    """The name of a run's files without a suffix. ``attacker``: the attack that takes part in the
    training.
    """
    named = [setting, coalition, defense, *([attacker] if attacker else []), f"s{seed}"]
    return "--".join(map(word, [*named, run_key[:12]]))


@lru_cache(maxsize=4096)
def word(name: str) -> str:
    """A name with the characters that file names may have."""
    return re.sub(r"[^A-Za-z0-9=.,_-]+", "_", name)[:_MOST_OF_A_NAME]


def stem(setting: str, coalition: str, defense: str, attack: str, seed: int, key: str) -> str:
    """The name of a cell."""
    return "--".join(map(word, [setting, coalition, defense, attack, f"s{seed}", key[:12]]))


def names_in(stem: str) -> str:
    """The name of a run or a cell without its key."""
    return stem.rpartition("--")[0]


def stem_of_run(record: Record) -> str:
    """The name of the files of the record's run."""
    r = record
    return run_stem(
        r.setting, r.coalition, r.defense.label, r.described["adversary"], r.seed, r.run_key
    )


def stem_in_merged(record: Record) -> str:
    """The same in a folder of several suites, where another suite has the same run."""
    return f"{word(record.suite)}--{stem_of_run(record)}"


def stem_of_cell(record: Record) -> str:
    """The name of the record's cell."""
    return stem(
        record.setting,
        record.coalition,
        record.defense.label,
        record.attack.label,
        record.seed,
        record.key,
    )
