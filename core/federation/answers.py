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
    """Wrong return value, and what was expected."""

    actual: str
    expected: str


Fit = Misfit | None  # None: the value is accepted
_FACTS = "a mapping from short names to finite numbers, short texts, or short lists of one of these"


def describe(value: Any) -> str:
    """Return a value in a few words."""
    if isinstance(value, torch.Tensor):
        return f"a tensor of shape {list(value.shape)}"
    return repr(value) if isinstance(value, int | float) else type(value).__name__


def vector(answer: Any, shape: torch.Size, like: torch.Tensor) -> Fit:
    """Accept floats of this shape on the device of ``like``, of any width: they are copied."""
    return _tensor(answer, list(shape), like, "floats")


def _tensor(
    answer: Any,
    shape: list[Any],
    like: torch.Tensor,
    dtype: str,
    field: str = "",
) -> Fit:
    """Accept a dense tensor.

    Args:
        shape: its lengths, None where any will do; ``...`` at the end: any further ones.
        like: a tensor on the expected device.
        dtype: ``floats``, or a name of torch's.
        field: the field of a larger answer, for the message.
    """
    lead = f"{field} that is " if field else ""
    expected = f"a tensor of shape [{', '.join('n' if n is None else str(n) for n in shape)}]"
    if isinstance(answer, torch.Tensor) and shape[-1:] == [...]:
        shape = [*shape[:-1], *answer.shape[len(shape) - 1 :]]
    if not isinstance(answer, torch.Tensor) or answer.dim() != len(shape):
        return Misfit(lead + describe(answer), expected)
    if any(n not in (None, m) for n, m in zip(shape, answer.shape, strict=True)):
        return Misfit(lead + describe(answer), expected)
    if answer.layout != torch.strided:
        return Misfit(f"{lead}a sparse tensor", "a dense one")
    name = _dtype_name(answer)
    if name != dtype and not (dtype == "floats" and answer.is_floating_point()):
        return Misfit(f"{lead}a tensor of {name}", f"{expected} of {dtype}")
    if answer.device != like.device:
        return Misfit(f"{lead}a tensor on {answer.device}", f"one on {like.device}")
    return None


def _dtype_name(t: torch.Tensor) -> str:
    return str(t.dtype).removeprefix("torch.")


def _optional(
    answer: Any,
    shape: list[Any],
    like: torch.Tensor,
    dtype: str,
    field: str,
) -> Fit:
    return None if answer is None else _tensor(answer, shape, like, dtype, field)


def _nothing(answer: Any, *args: Any) -> Fit:
    if answer is None:
        return None
    return Misfit(describe(answer), "None: what this phase returns is used nowhere")


def _scalar(answer: Any, logits: torch.Tensor, *args: Any) -> Fit:
    if not isinstance(answer, torch.Tensor) or answer.numel() != 1:
        return Misfit(describe(answer), "a tensor with one element")
    misfit = _tensor(answer, list(answer.shape), logits, "floats")
    if misfit is None and not answer.requires_grad:
        return Misfit("a loss without a gradient", "one that is computed from the logits")
    return misfit


def _index(answer: Any, models: Any, *args: Any) -> Fit:
    if type(answer) is int and 0 <= answer < len(models):
        return None
    return Misfit(describe(answer), f"0..{len(models) - 1}")


# --- samples --------------------------------------------------------------------------------------


def _data(answer: Any, data: MemberData, ctx: Any) -> Fit:
    """Accept data of any number of samples, which the loop checks, with values to train on."""
    if not isinstance(answer, MemberData):
        return Misfit(describe(answer), "MemberData")
    n = None
    if isinstance(answer.y, torch.Tensor) and answer.y.dim() == 1:
        n = len(answer.y)
    dtype = "floats"
    if isinstance(answer.x, torch.Tensor) and answer.x.dtype == data.x.dtype:
        dtype = "floats" if answer.x.is_floating_point() else _dtype_name(data.x)
    misfit = (
        _tensor(answer.y, [None], data.y, _dtype_name(data.y), "data.y")
        or _tensor(answer.x, [None, *data.x.shape[1:]], data.x, dtype, "data.x")
        or _optional(answer.soft, [n, *_target(ctx)], data.x, "floats", "data.soft")
        or _optional(answer.held_out, [n], data.x, "bool", "data.held_out")
    )
    return misfit or _values(answer, data, ctx)


def _target(ctx: Any) -> list[Any]:
    """Shape of a sample's soft target: probabilities, in another task anything."""
    return [ctx.federation.n_classes] if ctx.task.name == "classification" else [...]


def _values(answer: MemberData, data: MemberData, ctx: Any) -> Fit:
    """Accept values that a model can be trained on; called once a client."""
    for name in ("x", "soft"):
        part = getattr(answer, name)
        if part is None or part is getattr(data, name):
            continue
        if not bool(torch.isfinite(part).all()):
            return Misfit(f"data.{name} with values that are not finite", "finite ones")
    if answer.y is data.y:
        return None
    return _classes(answer.y, ctx.federation.n_classes, "data.y")


def _classes(y: torch.Tensor, classes: int, field: str) -> Fit:
    if y.is_floating_point() or not len(y):
        return None
    low, high = (int(end) for end in y.aminmax())
    if low >= 0 and high < classes:
        return None
    return Misfit(f"{field} from {low} to {high}", f"labels in 0..{classes - 1}")


def _selection(answer: Any, ctx: Any) -> Fit:
    if answer is None:
        return None
    if not isinstance(answer, Selection):
        return Misfit(describe(answer), "Selection or None")
    n = len(ctx.data.y)
    if misfit := _tensor(answer.index, [None], ctx.data.y, "int64", "an index"):
        return misfit
    if len(answer.index):
        low, high = (int(end) for end in answer.index.aminmax())
        if low < 0 or high >= n:
            return Misfit(f"an index from {low} to {high}", f"positions in 0..{n - 1}")
    if misfit := _flag(answer.flag, len(answer.index)):
        return misfit
    batches = answer.batches
    if batches is not None and not (type(batches) is int and batches >= 0):
        return Misfit(f"batches that are {describe(batches)}", "None, or an integer >= 0")
    if type(answer.poisson) is not bool:
        return Misfit(f"poisson that is {describe(answer.poisson)}", "True or False")
    return None


def _flag(flag: Any, n: int) -> Fit:
    """Accept flags of any type, one a sample."""
    if flag is None or (isinstance(flag, torch.Tensor) and flag.dim() > 0 and len(flag) == n):
        return None
    return Misfit(f"a flag that is {describe(flag)}", f"None, or one of each of the {n} samples")


def _batch(answer: Any, batch: Batch, ctx: Any) -> Fit:
    if not isinstance(answer, Batch):
        return Misfit(describe(answer), "Batch")
    if misfit := _tensor(answer.x, [None, *batch.x.shape[1:]], batch.x, "floats", "batch.x"):
        return misfit
    n = len(answer.x)
    if answer.x.dtype != batch.x.dtype or not n:
        content = _dtype_name(answer.x) if n else "an empty tensor"
        return Misfit(f"batch.x that is {content}", f"samples of {_dtype_name(batch.x)}")
    if answer.y is not batch.y or len(answer.y) != n:
        misfit = _tensor(answer.y, [n], batch.y, _dtype_name(batch.y), "batch.y")
        misfit = misfit or _classes(answer.y, ctx.federation.n_classes, "batch.y")
    if not misfit and answer.index is not batch.index:
        misfit = _tensor(answer.index, [n], batch.y, "int64", "batch.index")
    return (
        misfit
        or _optional(answer.soft, [n, *_target(ctx)], batch.x, "floats", "batch.soft")
        or _flag(answer.flag, n)
    )


# --- facts and rows -------------------------------------------------------------------------------


def _facts(answer: Any, *args: Any) -> Fit:
    if not isinstance(answer, Mapping):
        return Misfit(describe(answer), _FACTS)
    for name, value in answer.items():
        if not (type(name) is str and is_fact(name) and is_fact(value)):
            wrong = f"{name!r:.60} is {type(value).__name__} {value!r:.60}"
            return Misfit(describe(answer), f"{_FACTS}, of Python's own types; {wrong}")
    remarks = answer.get(REMARKS, [])
    if isinstance(remarks, list) and all(isinstance(text, str) for text in remarks):
        return None
    return Misfit(f"'{REMARKS}' that are {describe(remarks)}", "a list of sentences")


def _same_shape(answer: Any, rows: torch.Tensor, ctx: Any) -> Fit:
    """Accept rows that are not finite, a divergence that the loop handles, but no such answers."""
    if misfit := vector(answer, rows.shape, rows):
        return misfit
    if isinstance(ctx, AnswerContext):
        spoilt = torch.isfinite(rows) & ~torch.isfinite(answer.to(rows))
        if bool(spoilt.any()):
            return Misfit("logits that are not finite", "finite ones, as it was given")
    return None


def _gradient(answer: Any, batch: Batch, ctx: Any) -> Fit:
    return None if answer is None else vector(answer, ctx.params.shape, ctx.params)


def _step(
    answer: Any,
    rows: torch.Tensor,
    weights: torch.Tensor,
    ctx: Any,
) -> Fit:
    return vector(answer, rows.shape[1:], rows)


CHECKS: dict[Returns, Callable[..., Fit]] = {
    "nothing": _nothing,
    "data": _data,
    "batch": _batch,
    "selection": _selection,
    "index": _index,
    "scalar": _scalar,
    "vector or nothing": _gradient,
    "same shape": _same_shape,
    "step": _step,
    "facts": _facts,
}
