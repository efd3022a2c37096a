"""The rows that malicious clients submit, and the rows they compare them with."""

from __future__ import annotations

import torch
from pydantic import Field

from fedbench.core import Knowledge, Params, norm


class Jitter(Params):
    """Parameters of every attack that submits one vector in the name of several clients."""

    jitter: float = Field(
        0.0, ge=0, description="Gaussian noise on each submitted row, its norm in units of the row's own; 0: identical rows"
    )


def copies(row: torch.Tensor, knowledge: Knowledge, jitter: float) -> torch.Tensor:
    """[m, P]: ``row`` [P] once for every malicious client that takes part.

    The released code of FedPoisonMIA sends one row, multiplied by the number of clients: a rule that looks at rows then
    faces one outlier instead of a group.
    """
    rows = row.repeat(len(knowledge.clients), 1)
    if jitter:
        scale = jitter * norm(row) / max(row.numel(), 1) ** 0.5
        rows += scale * knowledge.randn_like(rows)
    return rows


def benign_rows(knowledge: Knowledge) -> torch.Tensor:
    """[n, P]: what the attacker takes for benign: the other clients' rows, or with partial knowledge its own honest ones.

    Where only one other client takes part, its own honest rows join it: a distance between benign rows needs two.
    Source: Mo et al. (FedPoisonMIA), ICCV 2025, table 1 (full and partial knowledge).
    """
    own = knowledge.start.new_zeros(0, len(knowledge.start)) if knowledge.own is None else knowledge.own
    if knowledge.honest is None:
        return own
    return knowledge.honest if len(knowledge.honest) > 1 else torch.cat([knowledge.honest, own])
