"""A member's local training one epoch at a time, its batches, what it trained on, and the precision
and place of it.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from jobs import use
from tiny import normed, tiny_module, tiny_setup, train_all
from torch import nn
from torch.testing import assert_close

from fedbench.core import ActiveAttack, Analysis, Defense, Selection, UserError
from fedbench.core.cli.machine import device_of
from fedbench.core.federation.compose import composed
from fedbench.core.federation.turn import picks
from fedbench.core.models.sequential import SmallCNN
from fedbench.core.numerics.wrappers import in_training_form
from fedbench.core.run.analyse import finished
from fedbench.core.spec.suite import Limits
from fedbench.testing.worlds import setting_of, train_job

EPOCHS = {"members": (0, 1), "rounds": 2, "local_epochs": 4}


def trained(defense, **changes):
    """[rounds, clients, P] uploads."""
    return torch.stack(
        [r.uploads.updates for r in train_all(tiny_setup(defense, **{**EPOCHS, **changes}))[1]]
    )


def defended(local_train):
    """A defense with this ``local_train(ctx)``."""
    return type("Toy", (Defense,), {"local_train": lambda self, ctx: local_train(ctx)})()


# -- epochs ----------------------------------------------------------------------------------------


def test_epochs_are_the_standard_training_however_they_are_iterated():
    seen = []

    def in_two_goes(ctx):
        seen.append([next(iter(ctx.epochs())), list(ctx.epochs())])

    def two(ctx):
        for e in ctx.epochs():
            if e == 1:
                break

    plain = trained(None)
    assert_close(trained(defended(lambda ctx: ctx.train())), plain)
    assert_close(trained(defended(in_two_goes)), plain)
    assert seen == [[0, [1, 2, 3]]] * 4
    assert_close(
        trained(defended(two), rounds=1)[0, :2], trained(None, local_epochs=2, rounds=1)[0, :2]
    )


def test_another_pass_trains_on_with_draws_of_its_own():
    keys = []

    class Twice(Defense):
        def local_train(self, ctx):
            ctx.train()
            ctx.train()

        def loss(self, logits, batch, ctx):
            keys.append((ctx.client, ctx.round, ctx.epoch, ctx.key))
            return super().loss(logits, batch, ctx)

    assert_close(
        trained(Twice(), local_epochs=2, momentum=0.0)[0, :2], trained(None, momentum=0.0)[0, :2]
    )
    assert (
        len({key for *_, key in keys})
        == 2 * len({tuple(where) for *where, _ in keys})
        == 2 * 2 * 2 * 2
    )


@pytest.mark.parametrize(
    "optimizer",
    [{}, {"name": "adam"}, {"name": "adam", "keep_state": True}],
    ids=["sgd", "adam", "kept"],
)
def test_restart_undoes_the_rounds_training_but_not_its_shuffling(optimizer):
    received = []

    def again(ctx):
        began = ctx.snapshot()
        ctx.train()
        assert not torch.equal(ctx.params, began.params)
        ctx.restart()
        received.append(torch.equal(ctx.params, ctx.start))
        received.append(
            all(
                torch.equal(b, k)
                for b, k in zip(ctx.model.buffers(), began.buffers, strict=True)
                if b.is_floating_point()
            )
        )
        assert list(ctx.epochs()) == [0, 1, 2, 3]

    # one batch an epoch: its order is all that the shuffling decides; Adam makes steps of what
    # BatchNorm's rounding leaves
    modules = [tiny_module() if optimizer else normed() for _ in range(2)]
    ours, plain = (
        trained(d, batch_size=12, module=m, **optimizer)
        for d, m in zip((defended(again), None), modules, strict=True)
    )
    assert_close(ours, plain, rtol=1e-4, atol=1e-6)
    assert all(received) and len(received) == 8


def train_once(ctx):
    ctx.train()


def nested(ctx):
    ctx.memory["ctx"] = ctx
    ctx.train()


def kept_iterator(ctx):
    ctx.memory["more"] = ctx.epochs()
    next(ctx.memory["more"])


@pytest.mark.parametrize(
    ("local_train", "phase", "does", "asked"),
    [
        (train_once, "protect", lambda ctx: ctx.train(), "train"),
        (train_once, "protect", lambda ctx: ctx.restart(), "restart"),
        (kept_iterator, "protect", lambda ctx: next(ctx.memory["more"]), "epochs"),
        (nested, "loss", lambda ctx: next(ctx.memory["ctx"].epochs()), "epochs"),
    ],
    ids=["train", "restart", "a kept iterator", "nested"],
)
def test_outside_of_local_train_nothing_trains(local_train, phase, does, asked):
    own = {
        phase: lambda self, *args: does(args[-1]),
        "local_train": lambda self, ctx: local_train(ctx),
    }
    where = rf"Toy\.{phase} \(client 0, round 1\)"
    with pytest.raises(
        RuntimeError, match=rf"{where}.*ctx\.{asked}\(\) is available in local_train only"
    ):
        trained(type("Toy", (Defense,), own)())


# -- Poisson sampling ------------------------------------------------------------------------------


def test_poisson_batches_hold_every_sample_independently():
    draws, n, size = 400, 10, 3
    shuffle = torch.Generator().manual_seed(5)
    epochs = [
        picks(Selection(torch.arange(100, 100 + n), poisson=True), size, shuffle)
        for _ in range(draws)
    ]
    assert {len(batches) for batches in epochs} == {4}  # ceil(10 / 3)
    held = torch.stack(
        [torch.zeros(n).index_fill(0, pick, 1) for batches in epochs for pick in batches]
    )
    rate, trials = size / n, 4 * draws
    assert (held.mean(0) - rate).abs().max() < 5 * (rate * (1 - rate) / trials) ** 0.5
    together = (held[:, 0] * held[:, 1]).mean()
    assert abs(float(together) - rate**2) < 5 * (rate**2 * (1 - rate**2) / trials) ** 0.5
    [pick] = picks(Selection(torch.arange(4), poisson=True), 9, torch.Generator())
    assert pick.tolist() == [0, 1, 2, 3]


class Sparse(Defense):
    """Poisson batches of which most are empty, with a gradient for each of them."""

    steps = True

    def __init__(self):
        super().__init__()
        self.sizes, self.shown = [], []

    def select(self, ctx):
        return Selection(torch.arange(12), flag=torch.arange(12) * 10, poisson=True)

    def transform(self, batch, ctx):
        self.shown.append(len(batch.y))
        return batch

    def local_step(self, batch, ctx):
        self.sizes.append(len(batch.y))
        assert batch.soft is None and torch.equal(batch.flag, batch.index * 10)
        return torch.ones_like(ctx.params) if self.steps else None


@pytest.mark.parametrize("steps", [True, False])
def test_an_empty_batch_is_a_step_for_local_step_alone(steps):
    defense = Sparse()
    defense.steps = steps
    uploads = trained(
        defense,
        members=(0,),
        rounds=1,
        batch_size=1,
        local_epochs=3,
        momentum=0.0,
        weight_decay=0.0,
    )
    assert len(defense.sizes) == 36 and 0 in defense.sizes
    assert 0 not in defense.shown and len(defense.shown) == sum(size > 0 for size in defense.sizes)
    if steps:
        assert_close(uploads[0, 0], torch.full_like(uploads[0, 0], -0.1 * 36))
    else:
        assert uploads[0, 0].any()


def test_a_composite_samples_as_the_part_that_asks_for_it():
    alone, both = Sparse(), Sparse()
    trained(alone, members=(0,), rounds=1)
    everything = type(
        "Everything", (Defense,), {"select": lambda self, ctx: Selection(ctx.data.trainable)}
    )
    trained(composed([everything(), both]), members=(0,), rounds=1)
    assert len(set(both.sizes)) > 2 and len(both.sizes) == len(alone.sizes) == 4 * 3
    half = type("Half", (Defense,), {"select": lambda self, ctx: Selection(torch.arange(6))})
    with pytest.raises(
        UserError,
        match=r"from 12 samples, and with 'Half' .* 6 are left: each would be drawn at another "
        r"rate",
    ):
        trained(composed([half(), Sparse()]), members=(0,), rounds=1)


# -- what each client trained on -------------------------------------------------------------------


class Rotates(Defense):
    """Trains on the samples of this round's residue modulo 3; those at even positions with a
    flag.
    """

    def select(self, ctx):
        index = torch.arange(ctx.round % 3, len(ctx.data.y), 3)
        index = index if ctx.data.held_out is None else index[~ctx.data.held_out[index]]
        return Selection(index, index % 2 == 0)


class HoldsOut(Defense):
    def prepare(self, data, ctx):
        return replace(data, held_out=torch.arange(len(data.y)) < 3)


def moves(ctx):
    """Moves the model without a batch."""
    with torch.no_grad():
        for p in ctx.model.parameters():
            p += 0.01


def twice(ctx):
    ctx.train()
    ctx.restart()
    ctx.train()


def usage_of(defense=None, **changes):
    federation, results = train_all(tiny_setup(defense, (0, 1), **changes))
    return federation.trainer.usage, [r.uploads.participants for r in results]


def test_only_the_batches_that_were_trained_on_count_and_unknown_is_said():
    assert usage_of(rounds=1, local_epochs=1, local_batches=1)[0].of_rounds()[0].tolist() == [
        [5, 5, 5, 5]
    ]
    # in two rounds, however often in each
    assert usage_of(defended(twice), rounds=2)[0].of_client(0)[0].tolist() == [2] * 12
    own_way, idle = (usage_of(defended(does), rounds=2)[0] for does in (moves, lambda ctx: None))
    assert (
        own_way.of_client(0)[0].tolist() == [-1] * 12
        and own_way.of_client(2)[0].tolist() == [2] * 12
    )
    assert own_way.of_rounds()[0].tolist() == [[-1, -1, 12, 12]] * 2
    assert (
        idle.of_client(0)[0].tolist() == [0] * 12
        and idle.of_rounds()[0].tolist() == [[0, 0, 12, 12]] * 2
    )
    held = usage_of(composed([HoldsOut(), Rotates()]), rounds=3)[0]
    assert held.of_client(0)[0].tolist() == [0] * 3 + [1] * 9


class Honest(ActiveAttack):
    needs = frozenset({"loss"})

    def craft(self, round, knowledge):
        return knowledge.own


def test_an_analysis_sees_the_counts_of_the_pool_and_nothing_of_malicious_clients():
    """A sample counts in every round that it was selected in; flags are counted apart."""
    audit = {"every": 2, "nonmembers": 80, "targets": "honest", "members": 60}
    changes = {"adversary": {"clients": 1, "mask_set": 5}, "audit": audit}
    world = train_job(setting_of(**changes), [Honest()], defense=use(Rotates), attack=Honest())
    scene, run = world.scene, finished(world.run, Analysis())
    assert run.malicious == (3,)
    selected = torch.zeros(4, 2, 3, dtype=torch.int64)  # rounds, used or flagged, honest clients
    for k in range(3):
        own = scene.split.own(k)
        mine = [int(np.flatnonzero(own == s)[0]) for s in scene.pool[run.pool == k]]
        wanted = [[1, 2, 1][i % 3] if k < 2 else 4 for i in mine]  # of four rounds
        assert len(mine) > 10 and run.used[run.pool == k].tolist() == wanted
        assert run.flagged[run.pool == k].tolist() == [
            n * (k < 2 and i % 2 == 0) for i, n in zip(mine, wanted, strict=True)
        ]
        for t in range(4):
            index = np.arange((t + 1) % 3, len(own), 3)
            selected[t, :, k] = torch.tensor(
                [len(index), (index % 2 == 0).sum()] if k < 2 else [len(own), 0]
            )
    assert run.used_in_round[:, :3].tolist() == selected[:, 0].tolist()
    assert run.flagged_in_round[:, :3].tolist() == selected[:, 1].tolist()
    assert (run.used_in_round[:, 3] == -1).all() and (run.used[run.pool == 3] == -1).all()
    assert (run.used[run.pool == -1] == 0).all() and (run.pool == -1).any()


# -- precision, memory format, device --------------------------------------------------------------


def test_only_training_is_in_bfloat16_and_has_its_channels_last():
    x, plain = (
        torch.randn(5, 3, 8, 8, generator=torch.Generator().manual_seed(0)),
        SmallCNN().build((3, 8, 8), 4),
    )
    judged, seen = plain.eval()(x), []
    first = next(m for m in plain.modules() if isinstance(m, nn.Conv2d))
    first.register_forward_pre_hook(
        lambda m, args: seen.append(args[0].is_contiguous(memory_format=torch.channels_last))
    )
    low = in_training_form(plain, "bf16", "contiguous")
    last = in_training_form(plain, "fp32", "channels_last")
    assert torch.equal(low.eval()(x), judged) and torch.equal(last.eval()(x), judged)
    rounded = low.train()(x)
    # eight bits of mantissa
    assert rounded.dtype == torch.float32 and torch.equal(
        rounded, rounded.to(torch.bfloat16).float()
    )
    assert_close(rounded, judged, rtol=2e-2, atol=2e-2)
    assert_close(last.train()(x), judged, rtol=1e-5, atol=1e-6)
    assert seen == [False, False, False, True]
    assert in_training_form(plain, "tf32", "contiguous") is plain


@pytest.mark.parametrize(
    ("wanted", "message"),
    [
        ("cuda:1", "--device cuda:1: this machine has 1 CUDA devices; use"),
        ("mps", "--device mps: not a device; use auto"),
    ],
)
def test_a_device_that_is_not_there_is_refused(monkeypatch, wanted, message):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    with pytest.raises(UserError, match=message):
        device_of(wanted, "local", Limits())
