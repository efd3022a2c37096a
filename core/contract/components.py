"""The small kinds of components: their typed parameters, and what data sets, models, signals and reports implement."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from pydantic import BaseModel, ConfigDict

if TYPE_CHECKING:
    import torch
    from torch import nn


class Params(BaseModel):
    """Base of every component's nested ``Params``: unknown fields forbidden, values immutable and finite.

    Give every field a ``description`` with its unit, and a range (``ge=``, ``le=``, ``Literal``).
    """

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False, validate_default=True)


class Configured:
    """Anything made from ``Params``: a defense, an attack, a dataset, a model.

    ``Component(**values)`` validates the values (raises ``pydantic.ValidationError``); ``self.params`` holds them.
    """

    # A component's own ``class Params(Params)`` shadows this one; its fields differ, hence ``Any``.
    Params: ClassVar[Any] = Params
    params: Any

    def __init__(self, **values: Any) -> None:
        self.params = type(self).Params(**values)


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


class Model(Configured):
    """Base of a model plugin: an architecture by name.

    Samples first: row i of the logits is sample i's. In eval mode it depends on no other sample and on no random number, so that
    two samples that are swapped swap their rows, and one that is changed, left out or alone changes no other row; the input is
    not written to. All of it is checked on samples of the data set before anything is trained. A module may turn the axes
    inside; a recurrent or attention layer that gets [B, T, d] as it is needs ``batch_first=True``.

    Per-sample gradients (the signals of the gradient, dp-sgd) are then right for any architecture, fastest for chains of linear,
    convolutional, normalising and embedding layers with the samples on the first axis of each. Where `vmap` cannot go through
    it, as with recurrent layers, they take one backward pass a sample, and the records say so.
    """

    def build(self, input_shape: tuple[int, ...], n_classes: int) -> nn.Module:
        """A fresh module: [B, *input_shape] -> logits [B, n_classes].

        The engine seeds torch's generator before the call, so ordinary initialisers are reproducible.
        Raises ``UserError`` when the architecture does not fit the input.
        """
        raise NotImplementedError(f"{type(self).__name__} does not implement build(input_shape, n_classes)")


@dataclass(frozen=True)
class Probe:
    """One model in front of one batch of candidates.

    ``model``: in eval mode, holding the uploaded parameters; ``update``: [P] uploaded minus received parameters;
    ``x``: [n, *input]; ``y``: [n]; ``logits``: [n, C] of ``model`` on ``x``; of a global model for which a defense answers,
    they are its answers, and so is what ``model`` gives, until gradients are asked for. Gradients are disabled. All of it is
    the signal's own copy; the model must be left as it was found, since the next batch is put to it.
    """

    model: nn.Module
    update: torch.Tensor
    x: torch.Tensor
    y: torch.Tensor
    logits: torch.Tensor

    def normalise(self, x: torch.Tensor) -> torch.Tensor:
        """[n, *input] as the model takes them inside: byte images as normalised floats, anything else unchanged.

        The model answers the same to both, so that a signal may perturb the floats. The engine's probes know the data's
        normalisation; one that is made by hand has none.
        """
        return x


class Signal(Configured):
    """Base of a signal plugin.

    ``vector``: whether it measures a vector of a sample instead of one number.
    """

    vector: bool = False

    def measure(self, probe: Probe) -> torch.Tensor:
        """[n] float32 on the device of ``probe.y``, finite wherever the logits are; un-augmented inputs, eval mode.

        Of a ``vector`` signal [n, d], d >= 1 the same in every call of a run.

        One that raises or answers anything else is not asked again in this run: the cells that need it fail and say why.
        """
        raise NotImplementedError(f"{type(self).__name__} does not implement measure(probe)")


@dataclass(frozen=True)
class Summary:
    """A table for a terminal: plain text, not escaped for any markup. ``headers``: one a column; ``rows``: one text a column.

    With ``headings``, one a row, the rows under one heading stand together below it, in 100 columns or as many as the terminal
    has: texts that are too long for it lose their middle, numbers nothing. ``notes``: lines below the table.
    """

    headers: list[str]
    rows: list[list[str]]
    headings: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


class Report(Configured):
    """Base of a report plugin; ``fedbench leaderboard RESULTS --report NAME`` calls it."""

    def write(self, results: Path, plots: bool = True) -> Path:
        """Write the report into ``results``/leaderboard, each file whole or not at all; the file to open.

        Raises ``UserError`` for records that cannot be used; then nothing is written.
        """
        raise NotImplementedError(f"{type(self).__name__} does not implement write(results, plots)")

    def summary(self, results: Path) -> Summary | None:
        """The report in a screenful, printed after it is written; None: it has none."""
        return None
