"""What every part of a suite file has in common."""

from __future__ import annotations

from typing import Annotated, ClassVar

from pydantic import BaseModel, ConfigDict, Field
from pydantic_core import PydanticCustomError

from fedbench.core.words.explain import printable

NAME_PATTERN = r"^[a-z0-9]+([_-][a-z0-9]+)*$"
LABEL_PATTERN = r"^[^\s\[\]]+$"
PATTERNS = {  # in words
    NAME_PATTERN: "lower-case letters and digits, joined by single '-' or '_'",
    LABEL_PATTERN: "text without blanks and brackets",
}
Name = Annotated[str, Field(pattern=NAME_PATTERN, max_length=80)]


class SpecModel(BaseModel):
    """Unknown fields are forbidden, values immutable and of the very type (``60.0`` is no integer, ``yes`` no bool)."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)

    short_form: ClassVar[str] = ""  # what may stand in place of the mapping


def all_shown(text: str) -> str:
    """The text itself; a mistake where a terminal or a board would act on a character of it, or hide it."""
    if (shown := printable(text)) != text:
        raise mistake(f"'{shown}' has a character that cannot be seen: remove it")
    return text


def mistake(text: str) -> PydanticCustomError:
    """A validator's error whose message reaches the user as it is."""
    return PydanticCustomError("fedbench", "{text}", {"text": text})
