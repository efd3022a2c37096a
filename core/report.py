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
    Entry,
    Row,
    RowDifference,
    RowSummary,
    Section,
    Strengths,
    Sweep,
)

__all__ = [
    "AuditedRound", "Block", "Bullets", "ClientGroup", "Column", "Content", "Courses", "Entry", "Figure",
    "Fold", "Heading", "Image", "Interval", "Note", "Numbers", "Quote", "Row", "RowDifference", "RowSummary", "Section",
    "Shortfall", "Strengths", "Style", "Sweep", "Table", "Text", "Value", "Words", "opened", "value",
]  # fmt: skip
