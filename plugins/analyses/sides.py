"""Members and outside non-members of each client, as the analyses of overfitting compare them."""

from __future__ import annotations

import numpy as np

from fedbench.core import FinishedRun


def clients_of(run: FinishedRun) -> list[int]:
    """Those that nobody controlled and that have both members and outsiders among the audited samples."""
    honest = (k for k in range(run.clients) if k not in run.malicious)
    return [k for k in honest if members_of(run, k).any() and outsiders_of(run, k).any()]


def members_of(run: FinishedRun, client: int) -> np.ndarray:
    """[N] bool: the audited samples that the client trained on."""
    return np.asarray(run.pool == client)


def outsiders_of(run: FinishedRun, client: int) -> np.ndarray:
    """[N] bool: nobody trained on them: the client's own test part or, where clients have none, the hold-out."""
    if (run.outsider_of >= 0).any():
        return np.asarray((run.outsider_of == client) & (run.pool == -1))
    return np.asarray(run.pool == -1)


def advantage(members: np.ndarray, outsiders: np.ndarray) -> float:
    """max |TPR - FPR| over all thresholds on one number; 0 where a side is empty."""
    if not len(members) or not len(outsiders):
        return 0.0
    at = np.concatenate([members, outsiders])
    below = [np.searchsorted(np.sort(side), at, side="right") / len(side) for side in (members, outsiders)]
    return float(np.abs(below[0] - below[1]).max())
