"""The papers' settings by name: one data file a recipe, beside this module."""

from __future__ import annotations

from functools import cache
from importlib.resources import files
from typing import Annotated, Any

from pydantic import AfterValidator
from ruamel.yaml import YAML

from fedbench.core.spec.base import mistake
from fedbench.core.words.nearest import did_you_mean


@cache
def recipe_names() -> tuple[str, ...]:
    """The recipes that are there, sorted."""
    return tuple(sorted(f.name.removesuffix(".yaml") for f in files(__name__).iterdir() if f.name.endswith(".yaml")))


@cache
def recipe(name: str) -> dict[str, Any]:
    """The fields of a federation that the recipe states."""
    return YAML(typ="safe", pure=True).load((files(__name__) / f"{name}.yaml").read_text(encoding="utf-8"))


def _known(name: str) -> str:
    if name not in recipe_names():
        raise mistake(f"unknown recipe '{name}'{did_you_mean(name, recipe_names())}; the recipes are {', '.join(recipe_names())}")
    return name


Recipe = Annotated[str, AfterValidator(_known)]


def with_recipe(value: object) -> object:
    """The mapping with every field it leaves out taken from its recipe; the optimiser's fields one by one."""
    if not isinstance(value, dict) or value.get("recipe") not in recipe_names():
        return value
    stated = recipe(value["recipe"])
    merged = {**stated, **value}
    if isinstance(value.get("optimizer"), dict):
        merged["optimizer"] = {**stated["optimizer"], **value["optimizer"]}
    return merged
