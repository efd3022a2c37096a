"""What a view sees of some samples of the pool: cut out of what was measured for all views."""

from __future__ import annotations

from collections.abc import Collection, Mapping

import numpy as np

from fedbench.core.contract.attack import Observations
from fedbench.core.contract.errors import SkipCell
from fedbench.core.contract.threat import View
from fedbench.core.signals.measure import COALITION, GRADIENT_SIGNALS, model_of_row


def observe(
    view: View, target: int | None, rows: list[int], rounds: np.ndarray, arrays: Mapping[str, np.ndarray], pick: np.ndarray,
    served: np.ndarray | None = None, members: Collection[int] = (),
) -> Observations:  # fmt: skip
    """What ``view`` sees of the samples at positions ``pick`` of the pool; the target's row where it has one.

    ``pick``: [n], or [R, M, n] where every round and client has candidates of its own (the released code's quirk).
    ``target`` is a client id (None for views without client rows). ``served``: [R, n] which of several global models
    serves each candidate's client: the global views see the candidate through that one. ``members``: whose mean the view
    ``coalition`` shows, and not beside it. Signals a view does not contain are not there.
    """
    clients = [i for i, r in enumerate(rows) if r >= 0]
    models = [i for i, r in enumerate(rows) if model_of_row(r) is not None]
    keep = {"server": clients, "client": models, "external": models}
    if COALITION in rows:  # who knows the coalition knows who is not in it, and has their uploads as they are
        keep["coalition"] = [rows.index(COALITION), *(i for i in clients if rows[i] not in members)]
    chosen = keep.get(view, [])
    last = slice(-1, None) if view == "external" else slice(None)
    through = served[last] if served is not None and view in ("client", "external") and len(models) > 1 else None

    def cut(a: np.ndarray) -> np.ndarray:
        seen = a[last]
        seen = seen[:, chosen] if a.shape[1] > 1 or len(rows) == 1 else seen
        if a.shape[2] > 1 and pick.ndim == 1:
            seen = seen[:, :, pick]
        elif a.shape[2] > 1:
            mine = pick[last][:, : len(chosen)]
            wide = np.broadcast_to(seen, (*mine.shape[:2], *a.shape[2:]))
            seen = np.take_along_axis(wide, mine.reshape(mine.shape + (1,) * (a.ndim - 3)), axis=2)
        if through is not None and seen.shape[1] > 1:
            wide = np.broadcast_to(seen, (*seen.shape[:2], through.shape[1], *seen.shape[3:]))
            seen = np.take_along_axis(wide, through.reshape(len(through), 1, -1, *(1,) * (a.ndim - 3)), axis=1)
        return seen.copy() if np.may_share_memory(seen, a) else seen  # what an attack writes to is its own

    # An outsider holds the final model, not the step that led to it.
    hidden = GRADIENT_SIGNALS if view == "external" else frozenset()
    signals = {name: cut(a) for name, a in arrays.items() if name not in hidden} if chosen else {}
    ids = np.array([rows[i] for i in (chosen if through is None else chosen[:1])], dtype=np.int64)
    mine = np.flatnonzero(ids == target)
    if view == "server" and len(mine) == 0:
        raise SkipCell("it follows one client's rows, but the audit asks about many clients together")
    position = int(mine[0]) if view == "server" else 0
    return Observations(view=view, rounds=rounds[last].copy(), clients=ids, target=position, signals=signals)
