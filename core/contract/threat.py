"""The words of a threat model: what an adversary sees, and what one inside the federation gets to know."""

from __future__ import annotations

from typing import Literal, get_args

View = Literal["server", "client", "coalition", "external"]
KnowledgeLevel = Literal["none", "own", "honest", "rule"]
LEVELS: tuple[KnowledgeLevel, ...] = get_args(KnowledgeLevel)  # ascending
# What the records of a defense with an `answer` say, by which a board finds its rows.
ANSWERS = (
    "it answers for the global model: the views client and external and the test accuracy are of its answers; the views server "
    "and coalition are of the uploads, and signals of the gradient of the parameters, which every client is sent"
)
