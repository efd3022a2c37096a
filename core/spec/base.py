"""The base class of every part of a suite file."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar

from pydantic import BaseModel, ConfigDict, Field, model_validator
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
    """Unknown fields are forbidden, values immutable and of the exact type (``60.0`` is not an integer, ``yes`` not a bool)."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)

    short_forms: ClassVar[tuple[dict[str, Any], ...]] = ()
    """JSON schemas of what may stand in place of the mapping, such as a name"""

    @model_validator(mode="before")
    @classmethod
    def _from_name(cls, value: Any) -> Any:
        return {"name": value} if cls.short_forms and isinstance(value, str) else value

    @classmethod
    def __get_pydantic_json_schema__(cls, core_schema: Any, handler: Any) -> dict[str, Any]:
        schema = handler(core_schema)
        return {"anyOf": [*cls.short_forms, handler.resolve_ref_schema(schema)]} if cls.short_forms else schema


def all_shown(text: str) -> str:
    """The text itself. Raises a mistake if a terminal or a board would hide or interpret a character of it."""
    if (shown := printable(text)) != text:
        raise mistake(f"'{shown}' has a character that cannot be seen: remove it")
    return text


def mistake(text: str) -> PydanticCustomError:
    """A validator's error; its message is shown unchanged."""
    return PydanticCustomError("fedbench", "{text}", {"text": text})
