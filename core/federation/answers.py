"""Checks of what a phase returns, by the column ``returns`` of the table of phases: type, shape,
dtype and device.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch

from fedbench.core.contract.contexts import AnswerContext
from fedbench.core.contract.defense import REMARKS, is_fact
from fedbench.core.contract.phases import Returns
from fedbench.core.contract.samples import Batch, MemberData, Selection


class Misfit(NamedTuple):
    """A wrong return value: what was found, and what was expected."""

    found: str
    expected: str


Fits = Misfit | None  # None: the value is accepted


def found(answer: Any) -> str:
    """A returned value in a few words."""
    if isinstance(answer, torch.Tensor):
        return f"a tensor of shape {list(answer.shape)}"
    return repr(answer) if isinstance(answer, int | float) else type(answer).__name__


def vector(answer: Any, shape: torch.Size, like: torch.Tensor) -> Fits:
    """Floats of this shape where ``like`` is; of any width, since they are copied into place."""
    return _tensor(answer, list(shape), like, "floats")


def _tensor(answer: Any, shape: list[Any], like: torch.Tensor, of: str, who: str = "") -> Fits:
    """``shape``: None where any length will do. ``of``: floats, int64 or bool. ``who``: the field
    of a larger answer.
    """
    lead = f"{who} that is " if who else ""
    words = f"a tensor of shape [{', '.join('n' if n is None else str(n) for n in shape)}]"
    if not isinstance(answer, torch.Tensor) or answer.dim() != len(shape):
        return Misfit(lead + found(answer), words)
    if any(n not in (None, m) for n, m in zip(shape, answer.shape, strict=True)):
        return Misfit(lead + found(answer), words)
    if answer.layout != torch.strided:
        return Misfit(f"{lead}a sparse tensor", "a dense one")
    if not (answer.is_floating_point() if of == "floats" else answer.dtype == getattr(torch, of)):
        return Misfit(
            f"{lead}a tensor of {str(answer.dtype).removeprefix('torch.')}", f"{words} of {of}"
        )
    return (
        None
        if answer.device == like.device
        else Misfit(f"{lead}a tensor on {answer.device}", f"one on {like.device}")
    )


def _first(checks: list[Fits]) -> Fits:
    return next((misfit for misfit in checks if misfit is not None), None)


def _nothing(answer: Any, *args: Any) -> Fits:
    return (
        None
        if answer is None
        else Misfit(found(answer), "None: what this phase returns is used nowhere")
    )


def _scalar(answer: Any, *args: Any) -> Fits:
    if not isinstance(answer, torch.Tensor) or answer.numel() != 1:
        return Misfit(found(answer), "a tensor with one element")
    if misfit := _tensor(answer, list(answer.shape), args[0], "floats"):
        return misfit
    return (
        None
        if answer.requires_grad
        else Misfit("a loss without a gradient", "one that is computed from the logits")
    )


def _index(answer: Any, models: Any, *args: Any) -> Fits:
    fits = type(answer) is int and 0 <= answer < len(models)
    return None if fits else Misfit(found(answer), f"0..{len(models) - 1}")


def _data(answer: Any, data: MemberData, ctx: Any) -> Fits:
    """The loop checks the number of samples."""
    return _kinds(answer, data, ctx) or _values(answer, data, ctx.federation.n_classes)


def _values(answer: MemberData, data: MemberData, classes: int) -> Fits:
    """Values that no model can be trained on; called once a client."""
    for name in ("x", "soft"):
        part = getattr(answer, name)
        if (
            part is not None
            and part is not getattr(data, name)
            and not bool(torch.isfinite(part).all())
        ):
            return Misfit(f"data.{name} with values that are not finite", "finite ones")
    if answer.y is data.y or not len(answer.y):
        return None
    low, high = (int(end) for end in answer.y.aminmax())
    return (
        None
        if low >= 0 and high < classes
        else Misfit(f"data.y from {low} to {high}", f"labels in 0..{classes - 1}")
    )


def _kinds(answer: Any, data: MemberData, ctx: Any) -> Fits:
    if not isinstance(answer, MemberData):
        return Misfit(found(answer), "MemberData")
    n = len(answer.y) if isinstance(answer.y, torch.Tensor) and answer.y.dim() == 1 else None
    return _first(
        [
            _tensor(answer.y, [None], data.y, "int64", "data.y"),
            _tensor(answer.x, [None, *data.x.shape[1:]], data.x, _kind(answer.x, data.x), "data.x"),
            None
            if answer.soft is None
            else _tensor(answer.soft, [n, ctx.federation.n_classes], data.x, "floats", "data.soft"),
            None
            if answer.held_out is None
            else _tensor(answer.held_out, [n], data.x, "bool", "data.held_out"),
        ]
    )


def _kind(x: Any, before: torch.Tensor) -> str:
    """What samples are made of: floats, or what they were (bytes)."""
    same = isinstance(x, torch.Tensor) and x.dtype == before.dtype and not x.is_floating_point()
    return str(before.dtype).removeprefix("torch.") if same else "floats"


def _selection(answer: Any, ctx: Any) -> Fits:
    if answer is None:
        return None
    if not isinstance(answer, Selection):
        return Misfit(found(answer), "Selection or None")
    like, n = ctx.data.y, len(ctx.data.y)
    if misfit := _tensor(answer.index, [None], like, "int64", "an index"):
        return misfit
    if len(answer.index) and not (int(answer.index.min()) >= 0 and int(answer.index.max()) < n):
        return Misfit(
            f"an index from {int(answer.index.min())} to {int(answer.index.max())}",
            f"positions in 0..{n - 1}",
        )
    if misfit := _flag(answer.flag, len(answer.index)):
        return misfit
    if answer.batches is not None and not (type(answer.batches) is int and answer.batches >= 0):
        return Misfit(f"batches that are {found(answer.batches)}", "None, or an integer >= 0")
    return (
        None
        if type(answer.poisson) is bool
        else Misfit(f"poisson that is {found(answer.poisson)}", "True or False")
    )


def _batch(answer: Any, batch: Batch, ctx: Any) -> Fits:
    if not isinstance(answer, Batch):
        return Misfit(found(answer), "Batch")
    if misfit := _tensor(answer.x, [None, *batch.x.shape[1:]], batch.x, "floats", "batch.x"):
        return misfit
    if answer.x.dtype != batch.x.dtype or not len(answer.x):
        what = str(answer.x.dtype).removeprefix("torch.") if len(answer.x) else "an empty tensor"
        return Misfit(
            f"batch.x that is {what}", f"samples of {str(batch.x.dtype).removeprefix('torch.')}"
        )
    n, classes = len(answer.x), ctx.federation.n_classes
    return _first(
        [
            _labels(answer.y, n, batch.y, classes),
            None
            if answer.index is batch.index
            else _tensor(answer.index, [n], batch.y, "int64", "batch.index"),
            None
            if answer.soft is None
            else _tensor(answer.soft, [n, classes], batch.x, "floats", "batch.soft"),
            _flag(answer.flag, n),
        ]
    )


def _labels(y: Any, n: int, before: torch.Tensor, classes: int) -> Fits:
    if y is before and len(y) == n:
        return None
    if misfit := _tensor(y, [n], before, "int64", "batch.y"):
        return misfit
    low, high = (int(end) for end in y.aminmax())
    return (
        None
        if low >= 0 and high < classes
        else Misfit(f"batch.y from {low} to {high}", f"labels in 0..{classes - 1}")
    )


def _flag(flag: Any, n: int) -> Fits:
    """Flags of any type, one a sample."""
    fits = flag is None or (isinstance(flag, torch.Tensor) and flag.dim() > 0 and len(flag) == n)
    return (
        None
        if fits
        else Misfit(f"a flag that is {found(flag)}", f"None, or one of each of the {n} samples")
    )


def _facts(answer: Any, *args: Any) -> Fits:
    expected = (
        "a mapping from short names to finite numbers, short texts, or short lists of one of these"
    )
    if not isinstance(answer, Mapping):
        return Misfit(found(answer), expected)
    wrong = [
        (k, v) for k, v in answer.items() if not (type(k) is str and is_fact(k) and is_fact(v))
    ]
    bad = [f"{k!r:.60} is {type(v).__name__} {v!r:.60}" for k, v in wrong]
    if bad:
        return Misfit(found(answer), f"{expected}, of Python's own types; {bad[0]}")
    remarks = answer.get(REMARKS, [])
    fits = isinstance(remarks, list) and all(isinstance(text, str) for text in remarks)
    return None if fits else Misfit(f"'{REMARKS}' that are {found(remarks)}", "a list of sentences")


def _same_shape(answer: Any, rows: torch.Tensor, ctx: Any) -> Fits:
    """Non-finite rows are a divergence, handled by the loop; a non-finite answer is refused
    here.
    """
    if misfit := vector(answer, rows.shape, rows):
        return misfit
    non_finite = isinstance(ctx, AnswerContext) and bool(
        (torch.isfinite(rows) & ~torch.isfinite(answer.to(rows))).any()
    )
    return (
        Misfit("logits that are not finite", "finite ones, as it was given") if non_finite else None
    )


CHECKS: dict[Returns, Callable[..., Fits]] = {
    "nothing": _nothing,
    "data": _data,
    "batch": _batch,
    "selection": _selection,
    "index": _index,
    "scalar": _scalar,
    "vector or nothing": lambda answer, batch, ctx: (
        None if answer is None else vector(answer, ctx.params.shape, ctx.params)
    ),
    "same shape": _same_shape,
    "step": lambda answer, rows, weights, ctx: vector(answer, rows.shape[1:], rows),
    "facts": _facts,
}
