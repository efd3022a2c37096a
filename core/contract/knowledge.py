"""What an adversary inside the federation may be granted; apart from the attacks, so that reading a suite loads no numpy."""

from __future__ import annotations

from typing import Literal, get_args

KnowledgeLevel = Literal["none", "own", "honest", "rule"]
LEVELS: tuple[KnowledgeLevel, ...] = get_args(KnowledgeLevel)  # ascending
