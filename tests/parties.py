"""What the engine hands to one party, made by hand: for tests of a phase without a training around
it.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from fedbench.core import Federation, MemberContext, MemberData
from fedbench.core.federation.setup import MemberTools
from fedbench.core.numerics.flat import FlatModel

CPU = torch.device("cpu")


def generator(seed: int) -> torch.Generator:
    """A fresh one on the CPU."""
    return torch.Generator().manual_seed(seed)


def facts_of(n_params: int, **changes: Any) -> Federation:
    """4 clients, 10 rounds, 1 local epoch, batches of 8, everybody takes part, 3 classes; and
    ``changes``.
    """
    given = {
        "clients": 4,
        "rounds": 10,
        "local_epochs": 1,
        "batch_size": 8,
        "participation": 1.0,
        "n_classes": 3,
    }
    return Federation(**{**given, "n_params": n_params, **changes})


def member_context(
    module: nn.Module,
    data: MemberData,
    facts: Federation | None = None,
    *,
    weights: int | None = None,
    **fields: Any,
) -> MemberContext:
    """Client 0 in round 1, with the engine's own tools, at the module's parameters or, with a seed
    ``weights``, at normal ones; ``fields``: the context's, where it is to be another.
    """
    flat = FlatModel(module, CPU)
    if weights is not None:
        with torch.no_grad():
            flat.params.copy_(
                torch.randn(
                    flat.params.shape, generator=generator(weights), dtype=flat.params.dtype
                )
            )
    usual = {"key": 1, "client": 0, "round": 1, "epoch": 0, "memory": {}}
    return MemberContext(
        **{
            **usual,
            "device": CPU,
            "federation": facts or facts_of(len(flat.params)),
            "data": data,
            "model": flat.module,
            "params": flat.params,
            "start": flat.params.clone(),
            "tools": MemberTools(),
            **fields,
        }
    )
