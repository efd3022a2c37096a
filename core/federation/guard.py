"""Call a plugin's phase; a failure or a wrong shape names the plugin, the phase, the client and the round."""

from __future__ import annotations

from typing import Any

import torch

from fedbench.core.contract.errors import Diverged, SkipCell, UserError


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
    out = call(plugin, phase, *args, where=where)
    if not isinstance(out, torch.Tensor) or tuple(out.shape) != shape:
        found = f"a tensor of shape {list(out.shape)}" if isinstance(out, torch.Tensor) else type(out).__name__
        name = type(plugin).__name__
        raise PhaseError(f"{name}.{phase} ({where}) returned {found}; expected a tensor of shape {list(shape)}")
    return out


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
