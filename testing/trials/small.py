"""A data set loaded, a model built and a signal measured: no training."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import nn

from fedbench.core.contract.dataset import Data, Dataset
from fedbench.core.contract.errors import UserError
from fedbench.core.contract.model import Model
from fedbench.core.contract.signal import Signal
from fedbench.core.execution.plugin_checks import require_data
from fedbench.core.numerics.flat import FlatModel
from fedbench.core.registry.components import Registry
from fedbench.core.signals.ask import Asked
from fedbench.core.signals.measure import GRADIENT_SIGNALS
from fedbench.testing.results import Failed, Skipped
from fedbench.testing.subject import Subject
from fedbench.testing.trials.defense import images, network

_SPLITS = ("train", "test", "holdout")
_BATCH = 6


# --- data sets --------------------------------------------------------------------------------------------------------


def loaded(subject: Subject, made: Dataset | None = None, seed: int = 0) -> Data:
    """What it loads, which is looked at first. Raises :class:`Skipped` where the data are not on this machine."""
    if not type(made or subject.make()).here():
        raise Skipped("its data are not on this machine, and a check downloads nothing")
    made = made or subject.make()
    return require_data(made.load(seed), subject.name)


def load(subject: Subject, made: Dataset) -> dict[str, Any]:
    """Every array of every split."""
    data = loaded(subject, made)
    said = {f"{split}_{part}": getattr(data, f"{split}_{part}") for split in _SPLITS for part in ("x", "y")}
    return said | {"train_canary": data.train_canary, "holdout_canary": data.holdout_canary, "mean": data.mean, "std": data.std}


# --- models -----------------------------------------------------------------------------------------------------------


def samples(subject: Subject, made: Model) -> tuple[torch.Tensor, int]:
    """([n, *input] samples that the model takes, number of classes): of a data set on this machine whose default it is, or of
    common shapes. Raises :class:`Skipped` where it takes none of them."""
    if "samples" not in subject.notes:
        subject.notes["samples"] = _samples(subject, made)
    return subject.notes["samples"]


def _samples(subject: Subject, made: Model) -> tuple[torch.Tensor, int]:
    refused = []
    for what, x, classes in _offered(subject):
        try:
            built(made, x, classes)
        except UserError as error:
            refused.append(f"{what}: {error}")
        else:
            return x, classes
    raise Skipped(f"it takes none of the inputs that are tried ({'; '.join(refused)}); name it as a data set's default_model")


def _offered(subject: Subject) -> Iterator[tuple[str, torch.Tensor, int]]:
    for found in Registry.discover().components("dataset") if subject.found else ():
        if found.distribution == subject.found.distribution and found.distribution != "fedbench":  # type: ignore[union-attr]
            cls = found.load()
            bare = not any(f.is_required() for f in cls.Params.model_fields.values())
            if bare and cls.default_model == subject.name and cls.here():
                data = require_data(cls().load(0), found.name)
                yield str(found), torch.from_numpy(np.ascontiguousarray(data.train_x[:_BATCH])), data.n_classes
    g = torch.Generator().manual_seed(5)
    for shape in ((3, 32, 32), (1, 28, 28), (1, 8, 8), (20,), (12, 5)):
        yield f"floats {list(shape)}", torch.randn(_BATCH, *shape, generator=g), 4
    yield "tokens [12]", torch.randint(0, 16, (_BATCH, 12), generator=g), 4


def built(made: Model, x: torch.Tensor, classes: int, key: int = 3) -> nn.Module:
    """A module, built as the engine does it: torch's generator is keyed before."""
    torch.random.default_generator.manual_seed(key)
    module = made.build(tuple(x.shape[1:]), classes)
    if not isinstance(module, nn.Module):
        raise Failed(f"build returned {type(module).__name__}; expected a torch.nn.Module")
    return module


def build(subject: Subject, made: Model) -> dict[str, Any]:
    """Its parameters and what they answer."""
    x, classes = samples(subject, made)
    module = built(made, x, classes).eval()
    if set(module.parameters()) & set(built(made, x, classes).parameters()):
        raise subject.failed("build returned the module of an earlier call; expected a fresh one, or runs go on from each other")
    if not any(p.requires_grad for p in module.parameters()):
        raise subject.failed("its module has no parameters to train; expected some with requires_grad=True")
    with torch.no_grad():
        return {"the parameters": dict(module.state_dict()), "the logits": module(x)}


# --- signals ----------------------------------------------------------------------------------------------------------


class Bench:
    """A model, an update of it, and samples with their labels: what a signal is asked about."""

    def __init__(self) -> None:
        data = images((23,))[0]
        self.x, self.y = data.x, data.y
        self.flat = FlatModel(network(), torch.device("cpu"))
        self.flat.module.eval()
        self.update = torch.randn(self.flat.params.shape, generator=torch.Generator().manual_seed(2)) * 0.1

    def measured(self, made: Signal, who: str, chunk: int = 23) -> torch.Tensor:
        """[23] or [23, d]: as the engine asks, so many samples at a time. Raises the engine's ``SignalError``."""
        pairs = list(zip(self.x.split(chunk), self.y.split(chunk), strict=True))
        with torch.no_grad():
            logits = [self.flat.module(x) for x, _ in pairs]
            return Asked(made, who, self.flat).row(self.update, pairs, logits)


def measure(subject: Subject, made: Signal, chunk: int = 23) -> dict[str, Any]:
    """The numbers of every sample. Raises :class:`Skipped` for one that the engine measures itself."""
    if subject.found is not None and subject.found.distribution == "fedbench" and subject.name in GRADIENT_SIGNALS:
        raise Skipped("the engine measures this signal for all clients at once")
    return {"the numbers": Bench().measured(made, f"'{subject.name}'", chunk)}
