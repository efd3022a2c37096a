"""Replayed local steps give the bits of the plain loop: on the CPU, where what CUDA graphs do is done operation by operation."""

from __future__ import annotations

import random
from dataclasses import replace

import numpy as np
import pytest
import torch
from tiny import tiny_clients, tiny_module, tiny_setup
from torch import nn

from fedbench.core import Defense, MemberData, Selection
from fedbench.core.federation.captured import MOST_STEPS, CapturedSteps, captured_steps
from fedbench.core.federation.coalitions import allied
from fedbench.core.federation.compose import composed
from fedbench.core.federation.loop import Training
from fedbench.core.models.cnn_small import SmallCNN
from fedbench.core.models.mlp import MLP
from fedbench.core.models.resnet20 import ResNet20
from fedbench.core.numerics.normalise import Normalised
from fedbench.core.numerics.precision import in_precision
from fedbench.core.numerics.replay import CpuOperations
from fedbench.plugins.defenses.cofedmid import CoFedMID
from fedbench.plugins.defenses.confidence_penalty import ConfidencePenalty
from fedbench.plugins.defenses.grad_noise import GradNoise
from fedbench.plugins.defenses.hamp import HAMP
from fedbench.plugins.defenses.mixup import Mixup
from fedbench.plugins.defenses.relaxloss import RelaxLoss
from fedbench.testing.trials.defense import Federated, setup_of


class Directly:
    """A recorder that records nothing: the step itself, from its static buffers."""

    def warm_up(self, step):
        step()

    def record(self, step):
        return step


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


def trained(setup, recorder=None):
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


def same(make, recorder) -> CapturedSteps:
    """The recorded steps, whose training must have left the plain loop's bits."""
    wanted, none = trained(make())
    found, steps = trained(make(), recorder)
    assert none is None and len(wanted) == len(found)
    for a, b in zip(wanted, found, strict=True):
        assert torch.equal(a, b)
    return steps


RECORDERS = pytest.mark.parametrize("recorder", [Directly(), CpuOperations()], ids=["directly", "recorded"])


def images(n=12, shape=(3, 16, 16), clients=3, floats=False):
    g = torch.Generator().manual_seed(5)
    made = []
    for k in range(clients):
        x = torch.randint(0, 256, (n + k, *shape), generator=g, dtype=torch.uint8)  # clients of several sizes
        made.append(MemberData(x.float() / 255 if floats else x, torch.randint(0, 3, (n + k,), generator=g)))
    return made


def drawn(module):
    g = torch.Generator().manual_seed(2)
    with torch.no_grad():
        for p in module.parameters():
            p.copy_(0.2 * torch.randn(p.shape, generator=g))
    return module


class Dropping(nn.Sequential):
    def __init__(self):
        super().__init__(nn.Linear(4, 8), nn.Dropout(0.4), nn.ReLU(), nn.Linear(8, 3))


def of_images(model, shape=(3, 16, 16), precision="fp32", **more):
    def make():
        module = Normalised(in_precision(drawn(model.build(shape, 3)), precision), (0.5,) * shape[0], (0.25,) * shape[0])
        return tiny_setup(members=(), module=module, clients=images(shape=shape), rounds=2, local_epochs=2, batch_size=5, **more)

    return make


MODELS = {
    "mlp": of_images(MLP(), (1, 8, 8)), "cnn-small, group norm": of_images(SmallCNN(), (3, 16, 16)),
    "batch norm": of_images(ResNet20(), (3, 8, 8)), "group norm": of_images(ResNet20(norm="group"), (3, 8, 8)),
    "bf16": of_images(SmallCNN(), precision="bf16"),
    "dropout": lambda: tiny_setup(members=(), module=drawn(Dropping())),
    "floats": lambda: tiny_setup(members=(), module=drawn(MLP().build((3, 16, 16), 3)), clients=images(floats=True)),
}  # fmt: skip


@RECORDERS
@pytest.mark.parametrize("name", MODELS)
def test_every_kind_of_model_trains_to_the_same_bits(name, recorder):
    steps = same(MODELS[name], recorder)
    assert steps.note == "" and steps.replays > 0


@RECORDERS
@pytest.mark.parametrize("changes", [
    {"batch_size": 4}, {"batch_size": 12}, {"batch_size": 7}, {"batch_size": 100}, {"local_batches": 1}, {"momentum": 0.0},
    {"weight_decay": 0.0}, {"schedule": {"name": "exponential", "factor": 0.7}}, {"schedule": {"name": "cosine"}},
    {"name": "adam"}, {"name": "adam", "keep_state": True, "weight_decay": 0.01}, {"participation": 0.5, "rounds": 5},
    {"max_delay": 2, "rounds": 5},
], ids=str)  # fmt: skip
def test_every_setting_of_the_optimiser_and_the_batches_gives_the_same_bits(changes, recorder):
    steps = same(lambda: tiny_setup(members=(), **changes), recorder)
    assert steps.note == "" and steps.replays > 0


def test_a_round_has_the_steps_of_the_plain_loop_and_every_one_is_a_replay():
    steps = same(lambda: tiny_setup(members=()), CpuOperations())
    assert steps.replays == 4 * 3 * 2 * 3  # clients x rounds x epochs x batches of 5, 5 and 2


class Soft(Defense):
    def prepare(self, data, ctx):
        return replace(data, soft=torch.nn.functional.one_hot(data.y, 3).float() * 0.8 + 0.1)


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
        each = torch.nn.functional.cross_entropy(logits, batch.y, reduction="none")
        return (each * (1 + batch.flag)).mean() + 0.01 * logits.square().sum() / ctx.federation.n_classes


class Twice(Defense):
    """Trains, starts anew, trains again."""

    def local_train(self, ctx):
        ctx.train()
        ctx.restart()
        ctx.train()


def cofedmid():
    return CoFedMID(m_max=1.0, m_min=0.5, sigma=0.01, ratio=0.3, recycle_from=1, val_min=2, min_assigned=1)


DEFENSES = {
    "soft labels": Soft, "flags": Some, "capturable phases": FlaggedLoss, "two passes": Twice, "hamp": HAMP,
    "confidence penalty": ConfidencePenalty, "cofedmid": cofedmid, "noise": GradNoise,
    "together": lambda: composed([GradNoise(), FlaggedLoss()]),
    "two coalitions": lambda: allied([(0, 1), (2,)], GradNoise),
}  # fmt: skip


def defended(make, **changes):
    """Three of four clients defend. Returns what makes the setup."""
    return lambda: tiny_setup(make(), members=(0, 1, 2), clients=tiny_clients(samples=40), local_epochs=2, **changes)


@RECORDERS
@pytest.mark.parametrize("name", DEFENSES)
def test_members_whose_phases_are_capturable_train_to_the_same_bits(name, recorder):
    steps = same(defended(DEFENSES[name]), recorder)
    plain = 3 * 2 * 8
    assert steps.note == "" and steps.replays > plain  # more than the undefended client's


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


class Saying(Overriding):
    """Says so of the transform alone."""

    capturable = frozenset({"transform"})


@pytest.mark.parametrize("make", [
    Mixup, RelaxLoss, DrawsInBatches, OwnGradient, Overriding, Saying, lambda: composed([FlaggedLoss(), Mixup()]),
    lambda: allied([(0, 1), (2,)], FlaggedLoss),
])  # fmt: skip
def test_members_whose_phases_are_not_train_step_by_step(make):
    """And the client that does not defend is replayed all the same."""
    steps = same(defended(make), CpuOperations())
    assert steps.note == "" and steps.replays == 3 * 2 * 8


class ReadsTheEpoch(Defense):
    """Declares a loss that it should not."""

    capturable = frozenset({"loss"})

    def loss(self, logits, batch, ctx):
        return super().loss(logits, batch, ctx) * (1 + ctx.epoch)


class AsksForAValue(ReadsTheEpoch):
    capturable = frozenset({"loss"})

    def loss(self, logits, batch, ctx):
        loss = Defense.loss(self, logits, batch, ctx)
        return loss if loss.item() > 1 else 2 * loss


class Draws(ReadsTheEpoch):
    capturable = frozenset({"loss"})

    def loss(self, logits, batch, ctx):
        return Defense.loss(self, logits, batch, ctx) * random.random()


@pytest.mark.parametrize(("make", "why"), [
    (ReadsTheEpoch, "ctx.epoch is not there for a phase that is declared capturable"), (AsksForAValue, "a value of a tensor"),
    (Draws, "draws from, or counts in"),
])  # fmt: skip
def test_a_phase_that_is_wrongly_declared_costs_speed_and_no_bit(make, why):
    steps = same(defended(make), CpuOperations())
    assert why in steps.note and "\n" not in steps.note


class Counting(nn.Sequential):
    """Its third call and those after are other functions."""

    def __init__(self):
        super().__init__(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))
        self.calls = 0

    def forward(self, x):
        self.calls += 1
        return super().forward(x) * (1 if self.calls < 3 else 2)


class DrawsByNumpy(nn.Sequential):
    def __init__(self):
        super().__init__(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))

    def forward(self, x):
        return super().forward(x) * float(np.random.rand() if self.training else 1.0)


class Alternating(nn.Sequential):
    """Counts where nobody looks."""

    def __init__(self):
        super().__init__(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))
        self.seen = []

    def forward(self, x):
        self.seen.append(1)
        return super().forward(x) * (1 + len(self.seen) % 2)


@pytest.mark.parametrize(("kind", "why"), [
    (Counting, "draws from, or counts in"), (DrawsByNumpy, "draws from, or counts in"), (Alternating, "another gradient"),
])  # fmt: skip
def test_a_model_that_a_recording_would_freeze_is_not_recorded(kind, why):
    setup = tiny_setup(members=(), module=drawn(kind()))
    _, steps = trained(setup, CpuOperations())
    assert why in steps.note and steps.replays == 0
    if kind is not Alternating:  # what it counts in a list of its own, nobody can put back
        assert why in same(lambda: tiny_setup(members=(), module=drawn(kind())), CpuOperations()).note


def test_where_a_recording_fails_the_plain_loop_trains_and_one_note_says_why():
    steps = same(lambda: tiny_setup(members=()), Broken())
    assert steps.replays == 0
    assert steps.note.startswith(
        "local steps were not captured, and ran operation by operation, with the same result: RuntimeError: operation not "
        "permitted when stream is capturing"
    )


def test_a_recording_that_gives_other_bits_is_not_used():
    def make():
        return tiny_setup(members=())

    wanted, _ = trained(make())
    setup = make()
    found, steps = trained(setup, Wrong(setup.flat))
    assert all(torch.equal(a, b) for a, b in zip(wanted, found, strict=True))
    assert steps.replays == 0 and "a replay gives another gradient than the step itself, by up to " in steps.note


def test_the_trial_leaves_no_trace_in_buffers_and_generators():
    """Batch statistics, the number of batches that they count, and dropout."""
    module = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Dropout(0.5), nn.Linear(8, 3))

    def make():
        return tiny_setup(members=(), module=drawn(module), batch_size=6)

    module[1].reset_running_stats()
    trained(make())
    wanted = int(module[1].num_batches_tracked)
    module[1].reset_running_stats()
    _, steps = trained(make(), CpuOperations())
    assert steps.replays > 0 and int(module[1].num_batches_tracked) == wanted == 4 * 3 * 2 * 2


def test_clients_of_many_sizes_take_a_bounded_number_of_recordings():
    clients = [replace(d, x=d.x[: 13 + k], y=d.y[: 13 + k]) for k, d in enumerate(tiny_clients(clients=12, samples=40))]
    steps = same(lambda: tiny_setup(members=(), clients=clients, batch_size=12), CpuOperations())
    assert steps.note == "" and 0 < steps.replays < 12 * 3 * 2 * 2
    assert sum(len(room.steps) for room in steps._rooms.values()) == MOST_STEPS


def test_a_model_that_fails_is_named_as_ever():
    class Failing(nn.Sequential):
        def forward(self, x):
            raise ValueError("no such input")

    setup = tiny_setup(members=(), module=Failing(*tiny_module()))
    with pytest.raises(RuntimeError, match=r"the model \(round 1\): ValueError: no such input"):
        trained(setup, CpuOperations())


def test_on_the_cpu_the_plain_loop_is_the_default():
    setup = tiny_setup()
    assert captured_steps(setup, Training(setup).trainer.optimizer) is None


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize("make", [Defense, ConfidencePenalty, HAMP])
def test_on_cuda_a_graph_is_the_default_and_gives_the_bits_of_the_plain_loop(make):
    def run(captured):
        training, seen = Training(setup_of(make(), Federated(device="cuda"))), []
        if not captured:
            training.trainer.captured = None
        for result in training.rounds():
            seen.append(result.uploads.updates.clone())
        return torch.cat(seen), training.trainer.captured

    (plain, _), (replayed, steps) = run(False), run(True)
    assert steps.note == "" and steps.replays > 0
    assert torch.equal(plain, replayed)
