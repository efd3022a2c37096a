"""Base classes of components: typed parameters; data sets, models, signals and reports."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy import ndarray
from pydantic import BaseModel, ConfigDict

from fedbench.core.contract.task import CLASSIFICATION, DEFAULT_TASK, Task

if TYPE_CHECKING:
    from torch import Tensor, nn


class Params(BaseModel):
    """Base of every component's nested ``Params``: unknown fields forbidden, values immutable and
    finite.

    Give every field a ``description`` with its unit, and a range (``ge=``, ``le=``, ``Literal``).
    """

    model_config = ConfigDict(
        extra="forbid", frozen=True, allow_inf_nan=False, validate_default=True
    )


class Configured:
    """Base of every component: an object with typed parameters.

    ``Component(**values)`` validates the values (raises ``pydantic.ValidationError``);
    ``self.params`` holds them.
    """

    # A component's own ``class Params(Params)`` shadows this one; its fields differ, hence ``Any``.
    Params: ClassVar[Any] = Params
    params: Any

    def __init__(self, **values: Any) -> None:
        self.params = type(self).Params(**values)


# --- data sets and models -------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Data:
    """Three disjoint splits and the facts about them.

    ``train`` is divided among the clients; ``test`` measures utility and nothing else; ``holdout``
    has the distribution of ``train`` (label noise included) and is never trained on: the audit's
    outside non-members. ``*_x``: [n, *input_shape] float32, integer tokens, or uint8 images [n,
    channels, height, width] with ``mean`` and ``std``: those stay uint8 on the device and are
    normalised there. ``*_y``: [n] targets of the task; in classification int64 class ids from 0 to
    ``n_classes`` - 1. ``public_x``, ``public_y``: samples beside these splits that everybody has;
    they are never audited.
    """

    train_x: ndarray
    train_y: ndarray
    test_x: ndarray
    test_y: ndarray
    holdout_x: ndarray
    holdout_y: ndarray
    n_classes: int
    """classes or, in another task, width of the model's outputs"""
    train_canary: ndarray = field(default_factory=lambda: np.zeros(0, bool))
    """[n] bool, deliberately mislabelled samples; all False where the dataset plants none"""
    holdout_canary: ndarray = field(default_factory=lambda: np.zeros(0, bool))
    mean: tuple[float, ...] | None = None
    """one value a channel, in units of 0..1"""
    std: tuple[float, ...] | None = None
    task: Task = DEFAULT_TASK
    """loss, prediction and utility"""
    public_x: ndarray = field(default_factory=lambda: np.zeros(0, np.float32))
    """samples on which a model may be pretrained; by default none"""
    public_y: ndarray = field(default_factory=lambda: np.zeros(0, np.int64))
    train_client: ndarray | None = None
    """[n] int64, the client that each training sample belongs to, for ``partition: given``"""
    holdout_client: ndarray | None = None
    """[n] int64, the client of each hold-out sample's site, -1 for none: outside non-members of a
    client are from its own site, where it has some
    """

    def __post_init__(self) -> None:
        for name, y in (("train_canary", self.train_y), ("holdout_canary", self.holdout_y)):
            if not len(getattr(self, name)):
                object.__setattr__(self, name, np.zeros(len(y), bool))

    @property
    def splits(self) -> tuple[str, ...]:
        """Names of the splits, and ``public`` where there are public samples."""
        public = ("public",) * bool(len(self.public_y))
        return "train", "test", "holdout", *public

    @property
    def input_shape(self) -> tuple[int, ...]:
        """Shape of one sample."""
        return tuple(self.train_x.shape[1:])

    def digest(self) -> str:
        """Hex sha256 of every array, so that a record names the data it was computed on."""
        h = hashlib.sha256()
        for name in (f"{split}_{part}" for split in self.splits for part in "xy"):
            a = np.ascontiguousarray(getattr(self, name))
            h.update(f"{name}:{a.dtype}:{a.shape};".encode())
            h.update(a.tobytes())
        h.update(self.train_canary.tobytes() + self.holdout_canary.tobytes())
        h.update(f"{self.mean}{self.std}".encode() if self.mean else b"")
        if self.task.name != DEFAULT_TASK.name:
            h.update(self.task.name.encode())
        for name in ("train_client", "holdout_client"):
            if (client := getattr(self, name)) is not None:
                h.update(name.encode() + np.ascontiguousarray(client, np.int64).tobytes())
        return h.hexdigest()


class Dataset(Configured):
    """Base of a dataset plugin: facts as class attributes, one method.

    Missing files are a ``UserError`` that says what to download, from where, and where to put it.
    """

    default_model: str = "mlp"
    licence: str = "unknown"
    citation: str = ""
    home: str = ""
    """URL of the data's origin"""
    size_mb: float | None = None
    """of the download; 0: nothing to download, None: your own files"""

    @classmethod
    def here(cls) -> str | bool:
        """Whether the data can be used here without a download; a string: in which form."""
        return True

    def load(self, seed: int) -> Data:
        """Splits for ``seed``; the same seed gives the same bits on every machine."""
        raise NotImplementedError(f"{type(self).__name__} does not implement load(seed)")


class Model(Configured):
    """Base of a model plugin: an architecture by name.

    Row i of the logits belongs to sample i. In eval mode it depends on no other sample and on no
    random number, and the input is not changed; this is checked on samples of the data set before
    training. A module may permute axes internally; a recurrent or attention layer on [B, T, d]
    needs ``batch_first=True``.

    Per-sample gradients (gradient signals, dp-sgd) are then exact for any architecture, and fastest
    for chains of linear, 2-D convolutional and normalisation layers with the samples on the first
    axis. A model that `vmap` does not support, such as one with recurrent layers, takes one
    backward pass a sample; its records have a note.
    """

    def build(self, input_shape: tuple[int, ...], n_classes: int) -> nn.Module:
        """Fresh module: [B, *input_shape] -> logits [B, n_classes].

        The engine seeds torch's generator before the call, so ordinary initialisers are
        reproducible. Raises ``UserError`` when the architecture does not fit the input.
        """
        raise NotImplementedError(
            f"{type(self).__name__} does not implement build(input_shape, n_classes)"
        )

    def pretrain(self, module: nn.Module, data: Data) -> None:
        """Train a fresh ``module``, on its device, on the public part of ``data`` before round 1.

        By default nothing is trained. The engine seeds torch's generator before ``build``, so draws
        from it are reproducible. Parameters, buffers and which parameters are trained are cached
        for other runs of the setting and seed; nothing else that it changes is.
        """


# --- signals --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Probe:
    """Model in front of one batch of candidates.

    Where a defense answers the queries of a global model, ``logits`` and the output of ``model``
    without gradients are its answers. Gradients are disabled. All fields are copies, made anew for
    each batch.
    """

    model: nn.Module
    """in eval mode, with the uploaded parameters"""
    update: Tensor
    """[P] uploaded minus received parameters"""
    x: Tensor
    """[n, *input]"""
    y: Tensor
    """[n]"""
    logits: Tensor
    """[n, C] of ``model`` on ``x``; of another task its outputs on the rows of an audit"""
    target: Tensor | None = None
    """of these rows; None: ``y``"""
    task: Task = DEFAULT_TASK
    """loss and prediction of the federation"""
    buffers: Tensor | None = None
    """[B] floating-point buffers (running statistics) of the received model, in the order of
    ``model.buffers()``; None: those of ``model``
    """

    def losses(self) -> Tensor:
        """Loss [n] of each sample."""
        target = self.y if self.target is None else self.target
        return self.task.sample_losses(self.logits, target)

    def normalise(self, x: Tensor) -> Tensor:
        """Byte images as normalised floats [n, *input], anything else unchanged.

        The model gives the same output for both, so a signal may perturb the floats. A probe made
        by hand has no normalisation.
        """
        return x


class Signal(Configured):
    """Base of a signal plugin."""

    vector: bool = False
    """whether it measures a vector of a sample instead of one number"""
    tasks: frozenset[str] = CLASSIFICATION
    """tasks that it serves; a cell that needs it in another one is skipped"""
    of_update: bool = False
    """whether it reads the update, or the received model: the view ``external`` does not have it"""

    def measure(self, probe: Probe) -> Tensor:
        """Values [n] float32 on the device of ``probe.y``, finite wherever the logits are; of a
        ``vector`` signal [n, d], d >= 1 the same in every call of a run.

        Called in eval mode on un-augmented inputs. If it raises or returns anything else, it is not
        called again in this run; the cells that need it fail with the reason.
        """
        raise NotImplementedError(f"{type(self).__name__} does not implement measure(probe)")


# --- reports --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Summary:
    """A table for a terminal: plain text, not escaped for any markup.

    Long texts are shortened in the middle to fit 100 columns or the terminal.
    """

    headers: list[str]
    """one a column"""
    rows: list[list[str]]
    """one text a column"""
    headings: list[str] = field(default_factory=list)
    """one a row; rows with the same heading are grouped below it"""
    notes: list[str] = field(default_factory=list)
    """lines below the table"""


class Report(Configured):
    """Base of a report plugin; ``fedbench leaderboard RESULTS --report NAME`` calls it."""

    def write(self, results: Path, plots: bool = True) -> Path:
        """Write the report into ``results``/leaderboard, each file whole or not at all; returns the
        file to open.

        Raises ``UserError`` for records that cannot be used; then nothing is written.
        """
        raise NotImplementedError(f"{type(self).__name__} does not implement write(results, plots)")

    def summary(self, results: Path) -> Summary | None:
        """Summary of at most one screen, printed after the report is written; None: no summary."""
        return None
