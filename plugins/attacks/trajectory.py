"""What the attacks on a trajectory share: whose uploads they follow, and whether a measurement is taken beside its class."""

from __future__ import annotations

from typing import Literal

import numpy as np
from pydantic import Field

from fedbench.core import Attack, Audit, Params


class Followed(Params):
    """Whose uploads an attack follows, and how a measurement is read."""

    view: Literal["server", "coalition"] = Field(
        "server",
        description="whose uploads it follows: the target's (server), or the weighted mean of the coalition's, in which noise "
        "that cancels is gone, beside the uploads of the clients outside (coalition; CoFedMID, section 5.4)",
    )
    normalise: Literal["none", "class"] = Field(
        "none",
        description="class: every measurement is standardised in each round among the candidates of its class, members or not, "
        "so that what a model knows of a whole class says nothing",
    )


class Trajectory(Attack):
    """Base of the attacks on a trajectory: the parameters of :class:`Followed`."""

    class Params(Followed):
        pass

    @property
    def view(self) -> Literal["server", "coalition"]:  # type: ignore[override]
        """As the parameter says."""
        return self.params.view  # type: ignore[no-any-return]

    def _read(self, measured: np.ndarray, audit: Audit) -> np.ndarray:
        """``measured`` [..., n] float64 of the audit's candidates, as the parameter ``normalise`` wants it."""
        return measured if self.params.normalise == "none" else within_class(measured, audit.y)


def within_class(measured: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Each value of [..., n] minus the mean of its class in its row, over the class's deviation there (ddof 0).

    ``y``: [n] labels. All candidates of the class count: no membership is needed. Every row (a round, a round and client) has
    statistics of its own, so what is added to all of a class in a row, or multiplies it, changes nothing. Where the class has one
    candidate, or the same value for all, its value is 0, the mean: it says nothing. NaN stays in rows of NaN.
    """
    values = np.asarray(measured, np.float64)
    values = np.broadcast_to(values, (*values.shape[:-1], len(y)))  # what does not vary over samples is the same for all
    out = np.zeros(values.shape)
    for label in np.unique(y):
        mine = y == label
        own = values[..., mine]
        apart = own - own.mean(axis=-1, keepdims=True)
        spread = np.sqrt((apart**2).mean(axis=-1, keepdims=True))
        # compared exactly: the mean of equal values may differ from them in the last bit
        alike = (own == own[..., :1]).all(axis=-1, keepdims=True) | (spread == 0)
        out[..., mine] = np.where(alike, 0.0, apart / np.where(alike, 1.0, spread))
    return out
