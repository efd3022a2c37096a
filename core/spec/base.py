"""Parts of suite files: the base class of their types, and uses of components."""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator
from pydantic_core import PydanticCustomError

from fedbench.core.spec import bounds
from fedbench.core.words import one_line, printable

NAME_PATTERN = r"^[a-z0-9]+([_-][a-z0-9]+)*$"
LABEL_PATTERN = r"^[^\s\[\]]+$"
FUNCTION_PATTERN = r"^[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*$"
PATTERNS = {  # in words
    NAME_PATTERN: "lower-case letters and digits, joined by single '-' or '_'",
    LABEL_PATTERN: "text without blanks and brackets",
    FUNCTION_PATTERN: "module:function, as Python imports it from the module",
}
Name = Annotated[str, Field(pattern=NAME_PATTERN, max_length=80)]


class SpecModel(BaseModel):
    """Unknown fields are forbidden, values immutable and of the exact type (``60.0`` is not an
    integer, ``yes`` not a bool).
    """

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)

    short_forms: ClassVar[tuple[dict[str, Any], ...]] = ()
    """JSON schemas of what may stand in place of the mapping, such as a name"""

    @model_validator(mode="before")
    @classmethod
    def _from_name(cls, value: Any) -> Any:
        if cls.short_forms and isinstance(value, str):
            return {"name": value}
        return value

    @classmethod
    def __get_pydantic_json_schema__(cls, core_schema: Any, handler: Any) -> dict[str, Any]:
        schema = handler(core_schema)
        if not cls.short_forms:
            return schema
        return {"anyOf": [*cls.short_forms, handler.resolve_ref_schema(schema)]}


def all_shown(text: str) -> str:
    """Return the text.

    Raises:
        PydanticCustomError: if a terminal or a board would hide or interpret a character of it.
    """
    visible = printable(text)
    if visible != text:
        raise mistake(f"'{visible}' has a character that cannot be seen: remove it")
    return text


def mistake(text: str) -> PydanticCustomError:
    """Return a validator's error; its message is shown unchanged."""
    return PydanticCustomError("fedbench", "{text}", {"text": text})


# --- uses of components ---------------------------------------------------------------------------


@dataclass(frozen=True)
class Point:
    """Row of a use."""

    label: str
    params: dict[str, Any]
    grid_index: dict[str, int]
    """parameter of the grid -> which of its values"""


class Use(SpecModel):
    """A dataset or a model: ``digits``, or ``{name: digits, params: {...}}``."""

    short_forms: ClassVar[tuple[dict[str, Any], ...]] = ({"type": "string"},)

    name: str = Field(
        min_length=1,
        max_length=200,
        description="name of the component, as `fedbench list` shows it",
    )
    params: dict[str, Any] = Field(
        default_factory=dict, description="its parameters, see `fedbench list --params`"
    )

    def points(self) -> Iterator[Point]:
        """Yield the rows of a use."""
        yield Point(self.name, self.params, {})


class MethodUse(Use):
    """A defense or an attack; ``grid`` makes one row of every combination of the listed values."""

    label: Annotated[str, AfterValidator(all_shown)] | None = Field(
        None,
        pattern=LABEL_PATTERN,
        max_length=80,
        description="name in tables; needed to use a component twice",
    )
    grid: dict[str, Annotated[list[Any], Field(min_length=1)]] = Field(
        default_factory=dict, max_length=20, description="parameter -> list of values to try"
    )
    then: list[Use] = Field(
        default_factory=list,
        max_length=10,
        description="defenses applied after this one",
    )

    @model_validator(mode="after")
    def _grid_fits(self) -> MethodUse:
        for name in self.grid:
            if name in self.params:
                raise mistake(f"'{name}' is given in both params and grid: keep one")
        if self.n_rows > bounds.ROWS:
            raise mistake(
                f"the grid has {self.n_rows:,} combinations, more than {bounds.ROWS:,}: split it"
            )
        return self

    @property
    def n_rows(self) -> int:
        """Number of rows, without making them."""
        return math.prod(map(len, self.grid.values()))

    def points(self) -> Iterator[Point]:
        """Yield the cartesian product of the grid, labelled like ``grad-noise[sigma=0.01]``."""
        base = self.label or "+".join([self.name, *(part.name for part in self.then)])
        for indices in itertools.product(*(range(len(v)) for v in self.grid.values())):
            grid_index = dict(zip(self.grid, indices, strict=True))
            values = {name: self.grid[name][i] for name, i in grid_index.items()}
            inner = ",".join(f"{name}={_text(value)}" for name, value in values.items())
            label = f"{base}[{inner}]" if inner else base
            yield Point(label, self.params | values, grid_index)


def grid_of(label: str) -> str:
    """Return the label that rows of a grid share: ``grad-noise`` of ``grad-noise[sigma=0.01]``."""
    return label.partition("[")[0]


def _text(value: Any) -> str:
    if not isinstance(value, str):
        value = json.dumps(value, separators=(",", ":"), default=str)
    return one_line(value, 80)
