"""What a dataset plugin returns."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field

import numpy as np

from fedbench.core.contract.params import Configured


@dataclass(frozen=True, kw_only=True)
class Data:
    """Three disjoint splits and the facts about them.

    ``*_x``: [n, *input_shape] float32, integer tokens, or uint8 images [n, channels, height, width] with ``mean`` and
    ``std`` (one value a channel, in units of 0..1): those stay uint8 on the device and are normalised there.
    ``*_y``: [n] int64 class ids from 0 to ``n_classes`` - 1.
    ``train`` is divided among the clients; ``test`` measures utility and nothing else; ``holdout`` has the
    distribution of ``train`` (label noise included) and is never trained on: the audit's outside non-members.
    ``*_canary``: [n] bool, deliberately mislabelled samples; all False where the dataset plants none.
    """

    train_x: np.ndarray
    train_y: np.ndarray
    test_x: np.ndarray
    test_y: np.ndarray
    holdout_x: np.ndarray
    holdout_y: np.ndarray
    n_classes: int
    train_canary: np.ndarray = field(default_factory=lambda: np.zeros(0, bool))
    holdout_canary: np.ndarray = field(default_factory=lambda: np.zeros(0, bool))
    mean: tuple[float, ...] | None = None
    std: tuple[float, ...] | None = None

    def __post_init__(self) -> None:
        for split in ("train", "holdout"):
            if len(getattr(self, f"{split}_canary")) == 0:
                none = np.zeros(len(getattr(self, f"{split}_y")), bool)
                object.__setattr__(self, f"{split}_canary", none)

    @property
    def input_shape(self) -> tuple[int, ...]:
        """Shape of one sample."""
        return tuple(self.train_x.shape[1:])

    def digest(self) -> str:
        """Hex sha256 of every array, so that a record names the data it was computed on."""
        h = hashlib.sha256()
        for name in ("train", "test", "holdout"):
            for part in ("x", "y"):
                a = np.ascontiguousarray(getattr(self, f"{name}_{part}"))
                h.update(f"{name}_{part}:{a.dtype}:{a.shape};".encode())
                h.update(a.tobytes())
        h.update(self.train_canary.tobytes() + self.holdout_canary.tobytes())
        h.update(f"{self.mean}{self.std}".encode() if self.mean else b"")
        return h.hexdigest()


class Dataset(Configured):
    """Base of a dataset plugin: facts as class attributes, one method.

    Missing files are a ``UserError`` that says what to download, from where, and where to put it.
    """

    default_model: str = "mlp"
    licence: str = "unknown"
    citation: str = ""
    home: str = ""  # where the data come from, a URL
    size_mb: float | None = None  # of the download; 0: nothing to download, None: yours

    @classmethod
    def here(cls) -> str | bool:
        """Whether the data can be used on this machine without a download; a string says in which form."""
        return True

    def load(self, seed: int) -> Data:
        """The splits for ``seed``; the same seed gives the same bits on every machine."""
        raise NotImplementedError(f"{type(self).__name__} does not implement load(seed)")
