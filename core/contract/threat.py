"""The words of a threat model: what an adversary sees, and what one inside the federation gets to know."""

from __future__ import annotations

from typing import Literal, get_args

View = Literal["server", "client", "coalition", "external"]
KnowledgeLevel = Literal["none", "own", "honest", "rule"]
LEVELS: tuple[KnowledgeLevel, ...] = get_args(KnowledgeLevel)  # ascending
