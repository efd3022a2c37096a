"""The kinds of fields of a board's document: each bounded, each text shown as text, each command one of fedbench's."""

from __future__ import annotations

from typing import Annotated

from pydantic import AfterValidator, Field, StringConstraints

from fedbench.core.words.explain import one_line
from fedbench.leaderboard.site.again import is_command, is_only

_MOST = 200_000  # of anything
_LONGEST = 1_000


def _shown(given: str) -> str:
    return one_line(given, _LONGEST)


def _runs_again(given: str) -> str:
    if not is_command(given):
        raise ValueError("not a command of fedbench alone")
    return given


def _is_part(given: str) -> str:
    if not is_only(given):
        raise ValueError("not a part of a command of fedbench")
    return given


def _finite(given: float) -> float:
    if given != given or given in (float("inf"), float("-inf")):
        raise ValueError("not a finite number")
    return given


Text = Annotated[str, StringConstraints(max_length=4 * _LONGEST), AfterValidator(_shown)]
Packed = Annotated[str, StringConstraints(pattern=r"^([A-Za-z0-9_-]{2})*$", max_length=1_000)]
Digits = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9_-]*$", max_length=3 * _LONGEST)]
Key = Annotated[str, StringConstraints(max_length=64), AfterValidator(_shown)]
Number = Annotated[int | float, AfterValidator(_finite)]
Interval = tuple[Number, Number | None, Number | None] | None
Index = Annotated[int, Field(ge=0, lt=_MOST)]
OrNone = Annotated[int, Field(ge=-1, lt=_MOST)]
Pair = tuple[Text, Text]
Command = Annotated[str, StringConstraints(max_length=2_000), AfterValidator(_runs_again)]
Only = Annotated[str, StringConstraints(max_length=2_000), AfterValidator(_is_part)]
