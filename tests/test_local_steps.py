"""Faster local steps give the bits of the plain ones: a chain's own gradient, and recorded steps as CUDA graphs replay them."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny import tiny_clients, tiny_module, tiny_setup
from torch import nn
from torch.nn.functional import cross_entropy
from torch.nn.modules.module import register_module_forward_hook

from fedbench.core import Defense, Selection
from fedbench.core.federation.captured import MOST_STEPS, CapturedSteps
from fedbench.core.federation.coalitions import allied
from fedbench.core.federation.compose import composed
from fedbench.core.federation.loop import Training
from fedbench.core.models.cnn_small import SmallCNN
from fedbench.core.models.mlp import MLP
from fedbench.core.models.resnet18 import ResNet18
from fedbench.core.numerics.chain import Chain
from fedbench.core.numerics.flat import FlatModel
from fedbench.core.numerics.normalise import Normalised
from fedbench.core.numerics.replay import CpuOperations
from fedbench.plugins.defenses.mixing import Mixup
from fedbench.plugins.defenses.uploads import GradNoise

C, CPU = 5, torch.device("cpu")
Make = Callable[[], Any]


# -- the gradient of a chain of layers ---------------------------------------------------------------------------------


def odd_net() -> nn.Module:
    """Every kind of layer, strides, dilation, groups, no bias, a nested chain, dropout on images and on rows."""
    return nn.Sequential(
        nn.Conv2d(2, 8, 3, stride=2, dilation=2, groups=2, bias=False), nn.GroupNorm(2, 8), nn.Tanh(), nn.Dropout(0.3),
        nn.Sequential(nn.Conv2d(8, 6, (1, 3), padding=(0, 1)), nn.ReLU(inplace=True), nn.MaxPool2d(3, 2, 1, ceil_mode=True)),
        nn.Flatten(), nn.ReLU(), nn.Linear(6 * 3 * 3, 7), nn.Dropout(0.5, inplace=True), nn.ReLU(), nn.Linear(7, C),
    )  # fmt: skip


SERVED: dict[str, tuple[tuple[int, ...], Make]] = {
    "odd": ((2, 14, 14), odd_net),
    "normalised": ((3, 8, 8), lambda: Normalised(SmallCNN(channels=4).build((3, 8, 8), C), (0.5, 0.4, 0.3), (0.2, 0.3, 0.1))),
}


def drawn_of(name: str, n: int, soft: bool) -> tuple[nn.Module, torch.Tensor, torch.Tensor]:
    """A model, a batch of ``n`` samples and its labels."""
    shape, build = SERVED[name]
    x = torch.randint(0, 256, (n, *shape), dtype=torch.uint8) if name == "normalised" else torch.randn(n, *shape)
    return build(), x, torch.rand(n, C).softmax(1) if soft else torch.randint(0, C, (n,))


@settings(max_examples=25)
@given(st.sampled_from(sorted(SERVED)), st.integers(1, 9), st.booleans(), st.booleans(), st.integers(0, 10**6))
def test_a_chains_gradient_is_autograds_bit_by_bit(name, n, soft, training, seed):
    torch.manual_seed(seed)
    model, x, target = drawn_of(name, n, soft)
    flat, before = FlatModel(model.train(training), CPU), x.clone()
    torch.manual_seed(seed)
    cross_entropy(flat.module(x), target).backward()
    expected, drawn = flat.grad.clone(), torch.rand(1)
    flat.grad.fill_(7.0)
    torch.manual_seed(seed)
    Chain.of(flat).gradient(x, target)
    assert torch.equal(flat.grad, expected) and torch.equal(torch.rand(1), drawn) and torch.equal(x, before)


def changed(change: Callable[[Any], Any]) -> Make:
    """A small network after this change."""

    def made() -> nn.Module:
        net = MLP(hidden=(4,)).build((4,), C)
        change(net)
        return net

    return made


NOT_SERVED: dict[str, Make] = {
    "a layer of another kind": lambda: nn.Sequential(nn.Flatten(), nn.Linear(4, 4), nn.GELU(), nn.Linear(4, C)),
    "a hook": changed(lambda net: net[1].register_forward_hook(lambda layer, args, out: out + 1)),
    "a frozen weight": changed(lambda net: net[1].weight.requires_grad_(False)),
    "a parameter's hook": changed(lambda net: net[1].weight.register_hook(lambda g: 2 * g)),
    "doubles": changed(lambda net: net.double()),
    "branches": lambda: ResNet18().build((3, 8, 8), C), "no chain at all": lambda: nn.Bilinear(2, 2, C),
}  # fmt: skip


def test_what_no_chain_serves_is_left_to_autograd():
    assert [what for what, make in NOT_SERVED.items() if Chain.of(FlatModel(make(), CPU)) is not None] == []
    flat = FlatModel(MLP(hidden=(4,)).build((4,), C), CPU)
    hook = register_module_forward_hook(lambda layer, args, out: None)
    try:
        assert Chain.of(flat) is None
    finally:
        hook.remove()
    assert Chain.of(flat) is not None
    with pytest.raises(IndexError, match="out of bounds"):
        Chain.of(flat).gradient(torch.randn(2, 4), torch.tensor([0, C]))


class Soft(Defense):
    """Trains on a part with soft labels: every phase but the loss."""

    def prepare(self, data, ctx):
        return replace(data, soft=torch.eye(3)[data.y] * 0.7 + 0.1)

    def select(self, ctx):
        return Selection(ctx.data.trainable[1:])


# -- recorded steps ----------------------------------------------------------------------------------------------------


class Broken(CpuOperations):
    """What it records is refused, as a device may refuse it."""

    def record(self, step):
        raise RuntimeError("operation not permitted when stream is capturing")


class Wrong(CpuOperations):
    """Its replays leave another gradient than the step."""

    def __init__(self, flat):
        self.flat = flat

    def record(self, step):
        replay = super().record(step)

        def wrong():
            replay()
            self.flat.grad[0] += 1e-3

        return wrong


def trained(setup, recorder=None) -> tuple[list[torch.Tensor], Any]:
    """(everything that a training leaves, the recorded steps)."""
    torch.manual_seed(1)
    random.seed(1)
    np.random.seed(1)
    training, seen = Training(setup), []
    if recorder is not None:
        training.trainer.captured = CapturedSteps(setup, training.trainer.optimizer, recorder)
    for result in training.rounds():
        seen += [result.uploads.updates.clone(), result.uploads.buffers.clone(), result.models.clone()]
    usage = training.trainer.usage
    counts = [torch.from_numpy(a) for k in range(len(setup.clients)) for a in usage.of_client(k)]
    return [*seen, *counts, *map(torch.from_numpy, usage.of_rounds())], training.trainer.captured


def same(make: Make, recorder: Any = None) -> CapturedSteps:
    """The recorded steps, whose training must have left the plain loop's bits."""
    wanted, none = trained(make())
    setup = make()
    found, steps = trained(setup, recorder(setup.flat) if recorder is Wrong else recorder() if recorder else CpuOperations())
    assert none is None and len(wanted) == len(found)
    assert all(torch.equal(a, b) for a, b in zip(wanted, found, strict=True))
    return steps


def drawn(module: nn.Module) -> nn.Module:
    g = torch.Generator().manual_seed(2)
    with torch.no_grad():
        for p in module.parameters():
            p.copy_(0.2 * torch.randn(p.shape, generator=g))
    return module


def dropping() -> nn.Module:
    """Batch statistics, the number of batches that they count, and dropout."""
    return drawn(nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Dropout(0.4), nn.ReLU(), nn.Linear(8, 3)))


def plain(**changes: Any) -> Make:
    return lambda: tiny_setup(members=(), **changes)


REPLAYED: dict[str, Make] = {
    "dropout": lambda: tiny_setup(members=(), module=dropping(), batch_size=6),
    "one of three batches": plain(local_batches=1), "kept moments": plain(name="adam", keep_state=True, weight_decay=0.01),
    "cohorts": plain(participation=0.5, max_delay=2, rounds=5),
}  # fmt: skip


@pytest.mark.parametrize("name", REPLAYED)
def test_recorded_steps_train_to_the_bits_of_the_plain_loop(name):
    steps = same(REPLAYED[name])
    assert steps.note == "" and steps.replays > 0


class Some(Defense):
    """Selects a part, some samples twice, with flags."""

    def select(self, ctx):
        index = ctx.randperm(len(ctx.data.y))[:9]
        index = torch.cat([index, index[:3]])
        return Selection(index, flag=torch.arange(len(index)) % 2 == ctx.round % 2)


class FlaggedLoss(Some):
    """A transform and a loss made of the batch's tensors alone."""

    capturable = frozenset({"transform", "loss"})

    def transform(self, batch, ctx):
        return replace(batch, x=batch.x * (1 + 0.1 * batch.flag[:, None]))

    def loss(self, logits, batch, ctx):
        each = cross_entropy(logits, batch.y, reduction="none")
        return (each * (1 + batch.flag)).mean() + 0.01 * logits.square().sum() / ctx.federation.n_classes


class Twice(Defense):
    """Trains, starts anew, trains again."""

    def local_train(self, ctx):
        ctx.train()
        ctx.restart()
        ctx.train()


class DrawsInBatches(Defense):
    def select(self, ctx):
        return Selection(ctx.data.trainable, poisson=True)


class OwnGradient(Defense):
    def local_step(self, batch, ctx):
        return None


class Overriding(FlaggedLoss):
    """Inherits the declaration, but not the loss that it was made of."""

    def loss(self, logits, batch, ctx):
        return super().loss(logits, batch, ctx) * (1 + 0.1 * ctx.epoch)


ROUND = 3 * 2  # rounds x epochs
MEMBERS: dict[str, tuple[Make, int]] = {  # batches of 5 of 40 samples; the last client defends in nothing
    "soft labels": (Soft, ROUND * 4 * 8), "two passes": (Twice, ROUND * (8 + 3 * 2 * 8)),
    "capturable phases": (FlaggedLoss, ROUND * (8 + 3 * 3)),
    "two coalitions": (lambda: allied([(0, 1), (2,)], GradNoise), ROUND * 4 * 8),
    "not: random batches": (DrawsInBatches, ROUND * 8), "not: a gradient": (OwnGradient, ROUND * 8),
    "not: mixup": (lambda: composed([FlaggedLoss(), Mixup()]), ROUND * 8), "not: an override": (Overriding, ROUND * 8),
    "not: coalitions' losses": (lambda: allied([(0, 1), (2,)], FlaggedLoss), ROUND * 8),
}  # fmt: skip


def defended(make: Make) -> Make:
    """Three of four clients defend."""
    return lambda: tiny_setup(make(), members=(0, 1, 2), clients=tiny_clients(samples=40))


@pytest.mark.parametrize("name", MEMBERS)
def test_members_train_to_the_same_bits_and_are_replayed_where_their_phases_are_capturable(name):
    make, replays = MEMBERS[name]
    steps = same(defended(make))
    assert steps.note == "" and steps.replays == replays


def declared(loss: Callable[..., Any]) -> type[Defense]:
    """A loss that should not be declared capturable."""
    own = {"loss": lambda self, logits, batch, ctx: loss(cross_entropy(logits, batch.y), ctx), "capturable": frozenset({"loss"})}
    return type("Declared", (Defense,), own)


class Counts(nn.Sequential):
    """Where a replay does not reach."""

    def __init__(self, *layers: nn.Module):
        super().__init__(*layers)
        self.calls = 0

    def forward(self, x):
        self.calls += 1
        return super().forward(x) * (1 if self.calls < 3 else 2)


ODD: dict[str, tuple[Make, Any, str]] = {
    "reads the epoch": (defended(declared(lambda loss, ctx: loss * (1 + ctx.epoch))), None, "ctx.epoch is not there for a phase"),
    "asks for a value": (defended(declared(lambda loss, ctx: loss * loss.item())), None, "a value of a tensor"),
    "a model that counts": (lambda: tiny_setup(members=(), module=Counts(*tiny_module())), None, "draws from, or counts in"),
    "a device that refuses": (plain(), Broken, "RuntimeError: operation not permitted when stream is capturing"),
    "a wrong replay": (plain(), Wrong, "a replay gives another gradient than the step itself, by up to "),
}  # fmt: skip


@pytest.mark.parametrize("name", ODD)
def test_where_recording_does_not_work_the_plain_loop_trains_and_one_note_says_why(name):
    make, recorder, why = ODD[name]
    steps = same(make, recorder)
    said = "local steps were not captured, and ran operation by operation, with the same result: "
    assert steps.note.startswith(said) and why in steps.note and "\n" not in steps.note


def test_clients_of_many_sizes_take_a_bounded_number_of_recordings():
    clients = [replace(d, x=d.x[: 13 + k], y=d.y[: 13 + k]) for k, d in enumerate(tiny_clients(clients=12, samples=40))]
    steps = same(plain(clients=clients, batch_size=12))
    # batches of 12, and of the rest of the first clients; the last one has two of 12
    assert steps.note == "" and steps.replays == ROUND * 2 * (MOST_STEPS - 1) + ROUND * 2


