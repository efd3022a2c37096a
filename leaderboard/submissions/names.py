"""What the files of a bundle are called; nothing else is taken out of one."""

from __future__ import annotations

import re

from fedbench.core.store.stems import STEM

MANIFEST = "manifest.json"
_RECORD = re.compile(rf"records/(?:{STEM.pattern})\.(?:json|npz)", re.ASCII)
_SUITE = re.compile(r"suites/[0-9a-f]{16}(?:\.given\.yaml|\.yaml|\.json)", re.ASCII)
_LONGEST = 260  # characters


def is_name(name: str) -> bool:
    """Whether it is the manifest's, a record's, its scores' or a suite's: letters, digits and ``=.,_-`` in one folder."""
    return name == MANIFEST or (len(name) <= _LONGEST and bool(_RECORD.fullmatch(name) or _SUITE.fullmatch(name)))
