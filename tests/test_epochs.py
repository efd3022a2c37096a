"""Local training one epoch at a time, and what a member may do between two of them."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from tiny import tiny_module, tiny_setup, train_all
from torch import nn
from torch.nn.functional import cross_entropy

from fedbench.core import Defense, Selection, UserError
from fedbench.core.federation.compose import composed
from fedbench.core.federation.epochs import picks
from fedbench.core.federation.guard import PhaseError, remarks_of

EPOCHS = {"members": (0, 1), "rounds": 2, "local_epochs": 4}


def trained(defense, **changes):
    """[rounds, clients, P] uploads."""
    return torch.stack([r.uploads.updates for r in train_all(tiny_setup(defense, **{**EPOCHS, **changes}))[1]])


def normed(width: int = 6) -> nn.Module:
    """With batch statistics."""
    inner = tiny_module(width)
    return nn.Sequential(inner[0], nn.BatchNorm1d(width), inner[1], inner[2])


def defended(train):
    """A defense with this ``local_train(ctx)``."""
    return type("Toy", (Defense,), {"local_train": lambda self, ctx: train(ctx)})()


def test_epochs_are_the_standard_training_and_say_their_number():
    seen = []
    assert torch.equal(trained(defended(lambda ctx: seen.append(list(ctx.epochs())))), trained(None))
    assert seen == [[0, 1, 2, 3]] * 4


def test_whoever_stops_iterating_has_trained_so_many_epochs():
    def two(ctx):
        for e in ctx.epochs():
            if e == 1:
                break

    assert torch.equal(trained(defended(two), rounds=1)[0, :2], trained(None, local_epochs=2, rounds=1)[0, :2])


def test_iterated_again_it_goes_on_where_it_stopped():
    seen = []

    def in_two_goes(ctx):
        seen.append([next(iter(ctx.epochs())), list(ctx.epochs())])

    assert torch.equal(trained(defended(in_two_goes)), trained(None))
    assert seen == [[0, [1, 2, 3]]] * 4


def test_after_the_last_epoch_another_pass_trains_on_with_draws_of_its_own():
    keys = []

    class Twice(Defense):
        def local_train(self, ctx):
            ctx.train()
            ctx.train()

        def loss(self, logits, batch, ctx):
            keys.append((ctx.client, ctx.round, ctx.epoch, ctx.key))
            return super().loss(logits, batch, ctx)

    twice = trained(Twice(), local_epochs=2, momentum=0.0)
    assert torch.equal(twice[0, :2], trained(None, momentum=0.0)[0, :2])  # 2 x 2 epochs are 4
    per_epoch = {(client, round_, epoch): set() for client, round_, epoch, _ in keys}
    for *where, key in keys:
        per_epoch[tuple(where)].add(key)
    assert {len(found) for found in per_epoch.values()} == {2} and len({k for *_, k in keys}) == 2 * len(per_epoch)


@pytest.mark.parametrize("optimizer", [{}, {"name": "adam"}, {"name": "adam", "keep_state": True}], ids=["sgd", "adam", "kept"])
def test_restart_undoes_the_rounds_training_but_not_its_shuffling(optimizer):
    received = []

    def again(ctx):
        began = ctx.snapshot()
        ctx.train()
        assert not torch.equal(ctx.params, began.params)
        ctx.restart()
        received.append(torch.equal(ctx.params, ctx.start))
        received.append(all(torch.equal(b, k) for b, k in zip(ctx.model.buffers(), began.buffers, strict=True)
                            if b.is_floating_point()))  # fmt: skip
        assert list(ctx.epochs()) == [0, 1, 2, 3]

    # one batch an epoch: its order is all that the shuffling decides; Adam makes steps of what BatchNorm's rounding leaves
    ours, plain = (
        trained(d, batch_size=12, module=tiny_module() if optimizer else normed(), **optimizer) for d in (defended(again), None)
    )
    torch.testing.assert_close(ours, plain, rtol=1e-4, atol=1e-6)
    assert all(received) and len(received) == 8


def test_a_snapshot_brings_back_parameters_and_batch_statistics():
    def best_is_first(ctx):
        for e in ctx.epochs():
            if e == 0:
                kept = ctx.snapshot()
        ctx.restore(kept)

    setups = [tiny_setup(d, module=normed(), members=(0,), rounds=1, local_epochs=n)
              for d, n in ((defended(best_is_first), 3), (None, 1))]  # fmt: skip
    (_, [ours]), (_, [one]) = map(train_all, setups)
    assert torch.equal(ours.uploads.updates[0], one.uploads.updates[0])
    assert torch.equal(ours.uploads.buffers[0], one.uploads.buffers[0])
    assert not torch.equal(ours.uploads.buffers[1], one.uploads.buffers[1])


@pytest.mark.parametrize("asked", ["epochs", "train", "restart"])
@pytest.mark.parametrize("phase", ["protect", "loss"])
def test_outside_of_local_train_nothing_trains(asked, phase):
    class Toy(Defense):
        def protect(self, update, ctx):
            return self._try("protect", ctx) or update

        def loss(self, logits, batch, ctx):
            return self._try("loss", ctx) or super().loss(logits, batch, ctx)

        def _try(self, here, ctx):
            if here == phase:
                getattr(ctx, asked)()

    where = rf"Toy\.{phase} \(client 0, round 1\)"
    with pytest.raises(PhaseError, match=rf"{where}.*ctx\.{asked}\(\) is available in local_train only"):
        trained(Toy())


def test_a_kept_iterator_or_context_is_worth_nothing_after_local_train():
    class Keeps(Defense):
        def local_train(self, ctx):
            ctx.memory["more"] = ctx.epochs()
            next(ctx.memory["more"])

        def protect(self, update, ctx):
            next(ctx.memory["more"])
            return update

    class Nests(Defense):
        def local_train(self, ctx):
            ctx.memory["ctx"] = ctx
            ctx.train()

        def loss(self, logits, batch, ctx):
            next(ctx.memory["ctx"].epochs())
            return super().loss(logits, batch, ctx)

    for defense, phase in ((Keeps(), "protect"), (Nests(), "loss")):
        with pytest.raises(PhaseError, match=rf"{phase} \(client 0, round 1\).*in local_train only, between its epochs"):
            trained(defense)


def test_the_other_parts_of_a_composite_act_in_every_epoch():
    class Stops(Defense):
        def local_train(self, ctx):
            for e in ctx.epochs():
                if e == 2:
                    return

    class Counts(Defense):
        def transform(self, batch, ctx):
            ctx.memory.setdefault("transform", []).append(ctx.epoch)
            return replace(batch, x=2 * batch.x)

        def loss(self, logits, batch, ctx):
            ctx.memory.setdefault("loss", []).append(ctx.epoch)
            return cross_entropy(logits, batch.y)

        def report(self, ctx):
            return {what: sorted(set(ctx.of_member[0][what])) for what in ("transform", "loss")}

    for parts in ((Stops(), Counts()), (Counts(), Stops())):
        training, _ = train_all(tiny_setup(composed(parts), rounds=2, local_epochs=4))
        assert training.facts() == {"transform": [0, 1, 2, 4, 5, 6], "loss": [0, 1, 2, 4, 5, 6]}


def test_logits_and_soft_losses_are_those_of_the_model_in_eval_mode():
    found = []

    def look(ctx):
        x, y, n = ctx.data.x, ctx.data.y, 3
        soft = torch.nn.functional.one_hot(y, n).double() * 0.4 + 0.2
        modes = [ctx.model.training]
        logits, losses, of_soft = ctx.logits(x), ctx.losses(x, y), ctx.losses(x, soft)
        modes.append(ctx.model.training)
        ctx.model.eval()
        direct = ctx.model(x).detach()
        ctx.model.train()
        found.append(modes)
        assert not logits.requires_grad and torch.equal(logits, direct)
        torch.testing.assert_close(losses, -direct.log_softmax(1)[torch.arange(len(y)), y])
        torch.testing.assert_close(of_soft.double(), -(soft * direct.log_softmax(1)).sum(1))
        assert ctx.losses(x[:0], y[:0]).shape == (0,)

    trained(defended(look), module=normed(), rounds=1)
    assert found == [[True, True]] * 2


# --- Poisson sampling


def test_poisson_batches_hold_every_sample_independently():
    draws, n, size = 400, 10, 3
    shuffle = torch.Generator().manual_seed(5)
    epochs = [picks(Selection(torch.arange(100, 100 + n), poisson=True), size, shuffle) for _ in range(draws)]
    assert {len(batches) for batches in epochs} == {4}  # ceil(10 / 3)
    held = torch.stack([torch.zeros(n).index_fill(0, pick, 1) for batches in epochs for pick in batches])
    rate, trials = size / n, 4 * draws
    five_sigma = 5 * (rate * (1 - rate) / trials) ** 0.5
    assert (held.mean(0) - rate).abs().max() < five_sigma
    together = (held[:, 0] * held[:, 1]).mean()
    assert abs(float(together) - rate**2) < 5 * (rate**2 * (1 - rate**2) / trials) ** 0.5
    assert len(set(held.sum(1).tolist())) > 5  # of no fixed size


def test_a_batch_size_above_the_data_takes_everything():
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
    uploads = trained(defense, members=(0,), rounds=1, batch_size=1, local_epochs=3, momentum=0.0, weight_decay=0.0)
    assert len(defense.sizes) == 36 and 0 in defense.sizes
    assert 0 not in defense.shown and len(defense.shown) == sum(size > 0 for size in defense.sizes)
    if steps:
        torch.testing.assert_close(uploads[0, 0], torch.full_like(uploads[0, 0], -0.1 * 36))
    else:
        assert uploads[0, 0].any()


def test_a_composite_samples_as_the_part_that_asks_for_it():
    class First(Defense):
        def select(self, ctx):
            return Selection(torch.arange(6))

    class Everything(Defense):
        def select(self, ctx):
            return Selection(ctx.data.trainable)

    alone, both = Sparse(), Sparse()
    trained(alone, members=(0,), rounds=1)
    trained(composed([Everything(), both]), members=(0,), rounds=1)
    assert len(set(both.sizes)) > 2 and len(both.sizes) == len(alone.sizes) == 4 * 3
    with pytest.raises(UserError, match="each would be drawn at another rate"):
        trained(composed([First(), Sparse()]), members=(0,), rounds=1)


def test_poisson_is_true_or_false():
    class Odd(Defense):
        def select(self, ctx):
            return Selection(torch.arange(3), poisson=1)

    with pytest.raises(PhaseError, match=r"Odd\.select .* returned poisson that is 1; expected True or False"):
        trained(Odd())


# --- remarks


class Says(Defense):
    """Remarks on the number of rounds."""

    def remarks(self, federation):
        return [f"{federation.rounds} rounds are few", f"{federation.rounds} rounds are few", "a line\nand another"]


def test_remarks_are_lines_none_twice_and_a_composites_are_led_by_their_parts():
    facts = tiny_setup().facts
    assert remarks_of(Defense(), facts) == []
    assert remarks_of(Says(), facts) == ["3 rounds are few", "a line and another"]
    assert remarks_of(composed([Says(), Defense()]), facts) == ["Says: 3 rounds are few", "Says: a line and another"]


@pytest.mark.parametrize(("answer", "found"), [("text", "str"), ([1], "list"), (None, "NoneType"), (({},), "tuple")])
def test_remarks_that_are_no_texts_are_refused(answer, found):
    class Odd(Defense):
        def remarks(self, federation):
            return answer

    with pytest.raises(UserError, match=rf"Odd\.remarks returned {found}; expected a list of texts"):
        remarks_of(Odd(), tiny_setup().facts)
