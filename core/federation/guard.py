"""Call a plugin's phase; a failure or a wrong shape names the plugin, the phase, the client and the round."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

from fedbench.core.contract.contexts import (
    Batch,
    CoalitionContext,
    MemberContext,
    MemberData,
    ReportContext,
    Selection,
    ServerContext,
)
from fedbench.core.contract.defense import Defense, is_fact
from fedbench.core.contract.errors import Diverged, SkipCell, UserError
from fedbench.core.contract.phases import Returns, phase


class PhaseError(RuntimeError):
    """A plugin failed in a phase; the message is what the record says."""


def call(plugin: Any, phase: str, *args: Any, where: str) -> Any:
    """``plugin.phase(*args)``; other people's exceptions become a :class:`PhaseError` naming ``where``."""
    try:
        return getattr(plugin, phase)(*args)
    except (UserError, SkipCell, Diverged, PhaseError):
        raise
    except Exception as error:
        name = type(plugin).__name__
        raise PhaseError(f"{name}.{phase} ({where}): {type(error).__name__}: {error}") from error


def call_for_rows(plugin: Any, phase: str, shape: tuple[int, ...], *args: Any, where: str) -> torch.Tensor:
    """The same for a phase that returns a tensor of a known shape."""
    out: torch.Tensor = call(plugin, phase, *args, where=where)
    if expected := _shaped(out, torch.Size(shape)):
        raise PhaseError(f"{type(plugin).__name__}.{phase} ({where}) returned {_found(out)}; expected {expected}")
    return out


def act(defense: Defense, name: str, *args: Any, where: str) -> Any:
    """A defense's answer in a phase, checked for what the table of phases says it returns; the context is the last argument.

    Raises :class:`PhaseError` that names the plugin, what was found and what was expected; ``LookupError`` for a name that is
    no phase.
    """
    row = phase(name)
    answer = call(defense, row.name, *args, where=where)
    if expected := _CHECKS[row.returns](answer, *args):
        raise PhaseError(f"{type(defense).__name__}.{row.name} ({where}) returned {_found(answer)}; expected {expected}")
    return answer


def _found(answer: Any) -> str:
    if isinstance(answer, torch.Tensor):
        return f"a tensor of shape {list(answer.shape)}"
    return repr(answer) if isinstance(answer, int | float) else type(answer).__name__


def _shaped(answer: Any, shape: torch.Size) -> str:
    fits = isinstance(answer, torch.Tensor) and answer.shape == shape
    return "" if fits else f"a tensor of shape {list(shape)}"


def _scalar(answer: Any) -> str:
    return "" if isinstance(answer, torch.Tensor) and answer.numel() == 1 else "a tensor with one element"


def _facts(answer: Any) -> str:
    expected = "a mapping from short names to finite numbers, short texts, or short lists of one of these"
    if not isinstance(answer, Mapping):
        return expected
    wrong = [(k, v) for k, v in answer.items() if not (type(k) is str and is_fact(k) and is_fact(v))]
    bad = [f"{k!r:.60} is {type(v).__name__} {v!r:.60}" for k, v in wrong]
    return f"{expected}, of Python's own types; {bad[0]}" if bad else ""


def _index(answer: Any, models: Any) -> str:
    return "" if type(answer) is int and 0 <= answer < len(models) else f"0..{len(models) - 1}"


# what the engine expected instead; nothing where the answer will do
_CHECKS: dict[Returns, Callable[..., str]] = {
    "nothing": lambda answer, *args: "",
    "data": lambda answer, *args: "" if isinstance(answer, MemberData) else "MemberData",
    "batch": lambda answer, *args: "" if isinstance(answer, Batch) else "Batch",
    "selection": lambda answer, *args: "" if answer is None or isinstance(answer, Selection) else "Selection or None",
    "index": lambda answer, models, *args: _index(answer, models),
    "scalar": lambda answer, *args: _scalar(answer),
    "vector or nothing": lambda answer, *args: "" if answer is None else _shaped(answer, args[-1].params.shape),
    "same shape": lambda answer, rows, *args: _shaped(answer, rows.shape),
    "step": lambda answer, rows, *args: _shaped(answer, rows.shape[1:]),
    "facts": lambda answer, *args: _facts(answer),
}


def where_of(ctx: MemberContext | CoalitionContext | ServerContext | ReportContext) -> str:
    """The place of a phase, for messages."""
    if isinstance(ctx, ReportContext):
        return "after the last round"
    when = f"round {ctx.round}" if ctx.round else "before round 1"
    if isinstance(ctx, MemberContext):
        return f"client {ctx.client}, {when}"
    return f"server, {when}" if isinstance(ctx, ServerContext) else when


def require_finite(rows: torch.Tensor, clients: tuple[int, ...], round: int, plugin: Any) -> None:
    """Raise :class:`Diverged` naming the clients whose rows [n, P] are not finite."""
    if bool(torch.isfinite(rows.sum())):  # a sum of finite float32 rows can overflow; then look closer
        return
    bad = [k for k, row in zip(clients, rows, strict=True) if not bool(torch.isfinite(row).all())]
    if bad:
        raise Diverged(
            f"round {round}: the upload of client {', '.join(map(str, bad))} is not finite "
            f"(defense {type(plugin).__name__}); lower the learning rate or mend the defense"
        )
