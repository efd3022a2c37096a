"""What a component says of itself: its parameters, its docstring, its announcement."""

from __future__ import annotations

import inspect
from typing import Any, Literal, get_args, get_origin

from annotated_types import Ge, Gt, Le, Lt
from pydantic.fields import FieldInfo

from fedbench.core.registry.hooks_of import misfits, unknown_methods
from fedbench.core.words.explain import explain
from fedbench.testing.results import Failed, Warned
from fedbench.testing.subject import Subject, constructed


def parameters_documented(subject: Subject) -> None:
    """Every parameter has a description."""
    bare = [n for n, f in subject.cls.Params.model_fields.items() if not (f.description or "").strip()]
    if bare:
        raise Failed(
            f"the parameter{'s' * (len(bare) > 1)} {', '.join(bare)} of {subject.cls.__name__}.Params "
            f"{'have' if len(bare) > 1 else 'has'} no description; expected Field(..., description=\"what it is, "
            f"with its unit\") [{subject.where(subject.cls.Params)}]"
        )


def parameters_bounded(subject: Subject) -> None:
    """Every numeric parameter has a range (ge, gt, le, lt) or is a Literal."""
    loose = [n for n, f in subject.cls.Params.model_fields.items() if _numeric(f.annotation) and not _bounded(f)]
    if loose:
        raise Failed(
            f"the numeric parameter{'s' * (len(loose) > 1)} {', '.join(loose)} of {subject.cls.__name__}.Params "
            f"{'take' if len(loose) > 1 else 'takes'} any number; expected a range, ge=, gt=, le= or lt= of Field, or a Literal "
            f"[{subject.where(subject.cls.Params)}]"
        )


def _numeric(annotation: Any) -> bool:
    if annotation in (int, float):
        return True
    return get_origin(annotation) is not Literal and any(_numeric(a) for a in get_args(annotation))


def _bounded(field: FieldInfo) -> bool:
    return any(isinstance(m, Ge | Gt | Le | Lt) for m in _metadata(field))


def _metadata(field: FieldInfo) -> list[Any]:
    """Of the field, and of what its annotation holds: ``list[Annotated[int, Field(ge=1)]]``."""
    found = list(field.metadata)
    todo = [field.annotation]
    while todo:
        annotation = todo.pop()
        for meta in getattr(annotation, "__metadata__", ()):
            found += meta.metadata if isinstance(meta, FieldInfo) else [meta]
        todo += get_args(annotation)
    return found


def defaults_construct(subject: Subject) -> None:
    """An instance is made from the defaults, and its params are those."""
    if subject.required:
        subject.make()  # says which parameters need values
    try:
        made = subject.cls(**subject.params)
    except TypeError as error:
        raise subject.failed(
            f"{explain(error)}; expected a constructor that takes the fields of Params by name: leave it alone, or call "
            "super().__init__(**values) in __init__(self, **values)"
        ) from error
    if not constructed(made):
        raise subject.failed(
            f"{subject.cls.__name__}() has no params of its own kind; expected what Configured.__init__ sets: leave the "
            "constructor alone, or call super().__init__(**values) in it"
        )


def documented(subject: Subject) -> None:
    """The class has a docstring of its own."""
    if not inspect.cleandoc(subject.cls.__doc__ or "").strip():
        raise subject.failed(
            f"the class {subject.cls.__name__} has no docstring; expected one line that says what it does, and its source"
        )


def announced(subject: Subject) -> None:
    """Its announcement has a summary that says more than its name."""
    if subject.found is None:
        raise Warned(f"{subject.cls.__name__} is announced by no entry point: nobody can name it in a suite")
    summary = subject.found.component.summary
    if summary.strip().lower().replace("-", " ") == subject.name.replace("-", " "):
        raise Failed(f"the announced summary is {summary!r}, its name again; expected one line that says what it does")


def signatures(subject: Subject) -> None:
    """Every hook takes what the engine hands to it."""
    if wrong := misfits(subject.cls):
        name, found, expected = wrong[0]
        raise subject.failed(
            f"{name} takes {found}; expected {name}{expected}, as the engine calls it", getattr(subject.cls, name)
        )


def known_methods(subject: Subject) -> None:
    """Every public method is a hook of the contract (of a defense: a phase): the engine calls no other."""
    said = unknown_methods(subject.cls)
    if meant := [text for text in said if "did you mean" in text]:
        raise subject.failed(f"{meant[0]}")
    if said:
        raise Warned(said[0])
