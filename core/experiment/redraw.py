"""FedMIA's released code redraws the non-members in every round and for every client; members stay in place.

With no leakage at all that alone separates them: what is averaged over rounds varies less for a position that holds
another sample each time (docs/methods/quirks.md#f1). Asked for by ``audit: {align_nonmembers: false}``.
"""

from __future__ import annotations

import numpy as np

from fedbench.core.numerics.rng import numpy_rng


def redrawn(
    pick: np.ndarray, owner: np.ndarray, owners_of_pool: np.ndarray, shape: tuple[int, int], seed: int, target: int
) -> np.ndarray:
    """[R, M, n] pool positions: those of members as in ``pick`` [n], the others drawn anew per round and client.

    ``owner``: [n] the training client of each candidate, -1 outside; ``owners_of_pool``: [N] the same of the pool;
    ``shape``: (R, M). A redrawn candidate has the owner of the one it replaces, as the released code keeps the mix.
    """
    out = np.broadcast_to(pick, (*shape, len(pick))).copy()
    for r in range(shape[0]):
        for m in range(shape[1]):
            rng = numpy_rng(seed, f"misaligned:{target}", r, m)
            for k in np.unique(owner[owner != target]):
                mine = np.flatnonzero(owner == k)
                out[r, m, mine] = rng.choice(np.flatnonzero(owners_of_pool == k), len(mine), replace=False)
    return out
