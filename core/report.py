"""Public names for analyses and reports: the blocks that a board is made of, and what a section of it holds."""

from fedbench.core.contract.board import (
    Block,
    Bullets,
    Column,
    Content,
    Figure,
    Fold,
    Heading,
    Image,
    Interval,
    Note,
    Numbers,
    Quote,
    Shortfall,
    Style,
    Table,
    Text,
    Value,
    Words,
    opened,
    value,
)
from fedbench.core.contract.section import (
    AuditedRound,
    ClientGroup,
    Courses,
    Duel,
    Entry,
    Family,
    Row,
    Section,
    Standing,
    Strengths,
    Sweep,
)

__all__ = [
    "AuditedRound", "Block", "Bullets", "ClientGroup", "Column", "Content", "Courses", "Duel", "Entry", "Family", "Figure",
    "Fold", "Heading", "Image", "Interval", "Note", "Numbers", "Quote", "Row", "Section", "Shortfall", "Standing", "Strengths",
    "Style", "Sweep", "Table", "Text", "Value", "Words", "opened", "value",
]  # fmt: skip
