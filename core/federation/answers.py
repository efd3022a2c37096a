"""Checks of a phase's return value, by the column ``returns`` of the table of phases: type, shape,
dtype and device.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch

from fedbench.core.contract.contexts import AnswerContext, MemberContext
from fedbench.core.contract.defense import REMARKS, is_fact
from fedbench.core.contract.phases import Returns
from fedbench.core.contract.samples import Batch, MemberData, Selection


class Misfit(NamedTuple):
    """A wrong return value, in words, and what was expected."""

    found: str
    expected: str


Fits = Misfit | None  # None: the value is accepted


def found(answer: Any) -> str:
    """Describe a returned value in a few words."""
    if isinstance(answer, torch.Tensor):
        return f"a tensor of shape {list(answer.shape)}"
    if isinstance(answer, int | float):
        return repr(answer)
    return type(answer).__name__


def vector(answer: Any, shape: torch.Size, like: torch.Tensor) -> Fits:
    """Floats of this shape where ``like`` is; of any width, since they are copied into place."""
    return _tensor(answer, list(shape), like, "floats")


def _tensor(answer: Any, shape: list[Any], like: torch.Tensor, kind: str, field: str = "") -> Fits:
    """Check a tensor.

    Args:
        shape: None for an axis of any length; "..." at the end for any further axes.
        kind: ``floats``, or the name of a dtype.
        field: of a larger answer.
    """
    lead = f"{field} that is " if field else ""
    expected = f"a tensor of shape [{', '.join('n' if n is None else str(n) for n in shape)}]"
    if not isinstance(answer, torch.Tensor) or not _of_shape(answer.shape, shape):
        return Misfit(lead + found(answer), expected)
    if answer.layout != torch.strided:
        return Misfit(f"{lead}a sparse tensor", "a dense one")
    if not (answer.is_floating_point() if kind == "floats" else _dtype(answer) == kind):
        return Misfit(f"{lead}a tensor of {_dtype(answer)}", f"{expected} of {kind}")
    if answer.device != like.device:
        return Misfit(f"{lead}a tensor on {answer.device}", f"one on {like.device}")
    return None


def _of_shape(shape: torch.Size, expected: list[Any]) -> bool:
    if expected[-1:] == ["..."]:
        expected = expected[:-1]
        shape = shape[: len(expected)]
    if len(shape) != len(expected):
        return False
    return all(n in (None, m) for n, m in zip(expected, shape, strict=True))


def _dtype(tensor: torch.Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")


def _first(*checks: Fits) -> Fits:
    return next((misfit for misfit in checks if misfit is not None), None)


def _nothing(answer: Any, *args: Any) -> Fits:
    if answer is None:
        return None
    return Misfit(found(answer), "None: what this phase returns is used nowhere")


def _scalar(answer: Any, *args: Any) -> Fits:
    if not isinstance(answer, torch.Tensor) or answer.numel() != 1:
        return Misfit(found(answer), "a tensor with one element")
    if misfit := _tensor(answer, list(answer.shape), args[0], "floats"):
        return misfit
    if not answer.requires_grad:
        return Misfit("a loss without a gradient", "one that is computed from the logits")
    return None


def _index(answer: Any, models: Any, *args: Any) -> Fits:
    if type(answer) is int and 0 <= answer < len(models):
        return None
    return Misfit(found(answer), f"0..{len(models) - 1}")


# --- samples --------------------------------------------------------------------------------------


def _data(answer: Any, data: MemberData, ctx: MemberContext) -> Fits:
    """The loop checks the number of samples."""
    if not isinstance(answer, MemberData):
        return Misfit(found(answer), "MemberData")
    n = None
    if isinstance(answer.y, torch.Tensor) and answer.y.dim() == 1:
        n = len(answer.y)
    kind = "floats"
    if not data.x.is_floating_point() and getattr(answer.x, "dtype", None) == data.x.dtype:
        kind = _dtype(data.x)  # bytes, as before
    misfit = _first(
        _tensor(answer.y, [None], data.y, _dtype(data.y), "data.y"),
        _tensor(answer.x, [None, *data.x.shape[1:]], data.x, kind, "data.x"),
        _soft(answer.soft, n, data.x, ctx, "data"),
    )
    if misfit is None and answer.held_out is not None:
        misfit = _tensor(answer.held_out, [n], data.x, "bool", "data.held_out")
    return misfit or _values(answer, data, ctx)


def _values(answer: MemberData, data: MemberData, ctx: MemberContext) -> Fits:
    """Refuse values that no model can be trained on; called once a client."""
    for name in ("x", "soft"):
        part = getattr(answer, name)
        if part is None or part is getattr(data, name):
            continue
        if not bool(torch.isfinite(part).all()):
            return Misfit(f"data.{name} with values that are not finite", "finite ones")
    if answer.y is data.y:
        return None
    return _classes(answer.y, ctx, "data.y")


def _soft(soft: Any, n: int | None, like: torch.Tensor, ctx: MemberContext, owner: str) -> Fits:
    """Targets of the default loss: class probabilities or, in another task, anything."""
    if soft is None:
        return None
    shape: list[Any] = [n, "..."]
    if ctx.task.name == "classification":
        shape = [n, ctx.federation.n_classes]
    return _tensor(soft, shape, like, "floats", f"{owner}.soft")


def _classes(y: torch.Tensor, ctx: MemberContext, field: str) -> Fits:
    if y.is_floating_point() or not len(y):
        return None
    classes = ctx.federation.n_classes
    low, high = (int(end) for end in y.aminmax())
    if low >= 0 and high < classes:
        return None
    return Misfit(f"{field} from {low} to {high}", f"labels in 0..{classes - 1}")


def _selection(answer: Any, ctx: MemberContext) -> Fits:
    if answer is None:
        return None
    if not isinstance(answer, Selection):
        return Misfit(found(answer), "Selection or None")
    index, n = answer.index, len(ctx.data.y)
    if misfit := _tensor(index, [None], ctx.data.y, "int64", "an index"):
        return misfit
    if len(index):
        low, high = int(index.min()), int(index.max())
        if low < 0 or high >= n:
            return Misfit(f"an index from {low} to {high}", f"positions in 0..{n - 1}")
    if misfit := _flag(answer.flag, len(index)):
        return misfit
    batches = answer.batches
    if batches is not None and not (type(batches) is int and batches >= 0):
        return Misfit(f"batches that are {found(batches)}", "None, or an integer >= 0")
    if type(answer.poisson) is not bool:
        return Misfit(f"poisson that is {found(answer.poisson)}", "True or False")
    return None


def _batch(answer: Any, batch: Batch, ctx: MemberContext) -> Fits:
    if not isinstance(answer, Batch):
        return Misfit(found(answer), "Batch")
    x = answer.x
    if misfit := _tensor(x, [None, *batch.x.shape[1:]], batch.x, "floats", "batch.x"):
        return misfit
    expected = f"samples of {_dtype(batch.x)}"
    if not len(x):
        return Misfit("batch.x that is an empty tensor", expected)
    if x.dtype != batch.x.dtype:
        return Misfit(f"batch.x that is {_dtype(x)}", expected)
    n = len(x)
    if answer.y is not batch.y or len(answer.y) != n:
        kind = _dtype(batch.y)
        misfit = _tensor(answer.y, [n], batch.y, kind, "batch.y")
        if misfit := misfit or _classes(answer.y, ctx, "batch.y"):
            return misfit
    misfit = None
    if answer.index is not batch.index:
        misfit = _tensor(answer.index, [n], batch.y, "int64", "batch.index")
    return misfit or _soft(answer.soft, n, batch.x, ctx, "batch") or _flag(answer.flag, n)


def _flag(flag: Any, n: int) -> Fits:
    """Flags of any type, one a sample."""
    if flag is None or (isinstance(flag, torch.Tensor) and flag.dim() > 0 and len(flag) == n):
        return None
    return Misfit(f"a flag that is {found(flag)}", f"None, or one of each of the {n} samples")


# --- facts and rows -------------------------------------------------------------------------------


def _facts(answer: Any, *args: Any) -> Fits:
    expected = (
        "a mapping from short names to finite numbers, short texts, or short lists of one of these"
    )
    if not isinstance(answer, Mapping):
        return Misfit(found(answer), expected)
    for name, value in answer.items():
        if not (type(name) is str and is_fact(name) and is_fact(value)):
            wrong = f"{name!r:.60} is {type(value).__name__} {value!r:.60}"
            return Misfit(found(answer), f"{expected}, of Python's own types; {wrong}")
    remarks = answer.get(REMARKS, [])
    if isinstance(remarks, list) and all(isinstance(text, str) for text in remarks):
        return None
    return Misfit(f"'{REMARKS}' that are {found(remarks)}", "a list of sentences")


def _optional_vector(answer: Any, batch: Batch, ctx: MemberContext) -> Fits:
    if answer is None:
        return None
    return vector(answer, ctx.params.shape, ctx.params)


def _same_shape(answer: Any, rows: torch.Tensor, ctx: Any) -> Fits:
    """Refuse a non-finite answer; non-finite rows are a divergence, handled by the loop."""
    if misfit := vector(answer, rows.shape, rows):
        return misfit
    if not isinstance(ctx, AnswerContext):
        return None
    if bool((torch.isfinite(rows) & ~torch.isfinite(answer.to(rows))).any()):
        return Misfit("logits that are not finite", "finite ones, as it was given")
    return None


CHECKS: dict[Returns, Callable[..., Fits]] = {
    "nothing": _nothing,
    "data": _data,
    "batch": _batch,
    "selection": _selection,
    "index": _index,
    "scalar": _scalar,
    "vector or nothing": _optional_vector,
    "same shape": _same_shape,
    "step": lambda answer, rows, weights, ctx: vector(answer, rows.shape[1:], rows),
    "facts": _facts,
}
