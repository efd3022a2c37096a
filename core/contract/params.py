"""Typed parameters of a component: one pydantic model serves validation, `--params`, JSON schema and docs."""

from __future__ import annotations

from typing import Any, ClassVar

from pydantic import BaseModel, ConfigDict


class Params(BaseModel):
    """Base of every component's nested ``Params``: unknown fields forbidden, values immutable and finite.

    Give every field a ``description`` with its unit, and a range (``ge=``, ``le=``, ``Literal``).
    """

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False, validate_default=True)


class Configured:
    """Anything made from ``Params``: a defense, an attack, a dataset, a model.

    ``Component(**values)`` validates the values (raises ``pydantic.ValidationError``); ``self.params`` holds them.
    """

    # A component's own ``class Params(Params)`` shadows this one; its fields differ, hence ``Any``.
    Params: ClassVar[Any] = Params
    params: Any

    def __init__(self, **values: Any) -> None:
        self.params = type(self).Params(**values)
