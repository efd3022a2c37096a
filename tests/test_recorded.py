"""Recorded steps give the bits of the steps themselves, and a wrong recording is refused. CUDA's
recorder has a stand-in here, which runs the step again.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from tiny import tiny_setup
from torch import nn
from torch.nn.functional import cross_entropy

from fedbench.core import Defense, MemberData
from fedbench.core.federation import recorded
from fedbench.core.federation.loop import Training
from fedbench.core.federation.recorded import Step
from fedbench.core.federation.setup import Setup
from fedbench.core.models.residual import ResNet20
from fedbench.core.models.sequential import MLP, SmallCNN

SHAPE, CLASSES = (3, 8, 8), 3


class StandIn:
    """Recorder that keeps the step, of which ``change`` makes a replay."""

    def __init__(self) -> None:
        self.change: Callable[[Step], Step] = lambda step: step
        self.recordings = 0
        self.replays = 0

    def record(self, step: Step) -> Step:
        self.recordings += 1
        step()  # as a warm-up does
        run = self.change(step)

        def replay() -> None:
            self.replays += 1
            run()

        return replay


@pytest.fixture
def recorder(monkeypatch) -> StandIn:
    """What stands in for CUDA's."""
    made = StandIn()
    monkeypatch.setattr(recorded, "CudaGraphs", lambda device: made)
    return made


def ragged(shape: tuple[int, ...]) -> list[MemberData]:
    """Clients with 7, 12, 5 and 7 samples: batches of 5 and of 2."""
    g = torch.Generator().manual_seed(7)
    sizes = (7, 12, 5, 7)
    labels = [torch.randint(0, CLASSES, (n,), generator=g) for n in sizes]
    return [MemberData(torch.randn(len(y), *shape, generator=g), y) for y in labels]


def setup_of(module: nn.Module, backend: str, defense: Defense | None = None, **changes) -> Setup:
    """A rate that is a float32 number, so that no rounding tells the backends apart."""
    members = (0, 2) if defense else ()
    fields = {"lr": 0.125, "rounds": 2, **changes}
    clients = ragged(SHAPE)
    return tiny_setup(defense, members, 1, module, clients, backend=backend, **fields)


def updates_of(setup: Setup) -> tuple[list[torch.Tensor], str]:
    """The updates of each round, and the note."""
    training = Training(setup)
    updates = [result.uploads.updates.clone() for result in training.rounds()]
    return updates, training.trainer.note


def mlp(*more: nn.Module) -> nn.Module:
    net = MLP(hidden=(9,)).build(SHAPE, CLASSES)
    return nn.Sequential(*net[:-1], *more, net[-1])


NETS: dict[str, Callable[[], nn.Module]] = {
    "mlp": mlp,
    "dropout": lambda: mlp(nn.Dropout(0.4)),
    "cnn": lambda: SmallCNN(channels=4).build(SHAPE, CLASSES),
    "resnet": lambda: ResNet20().build(SHAPE, CLASSES),
}
SMALL = 2**-7
ADAM = {"name": "adam", "lr": SMALL}


def built(name: str) -> nn.Module:
    torch.manual_seed(3)
    return NETS[name]()


@pytest.mark.parametrize(
    ("name", "optimizer"), [*((name, {}) for name in NETS), ("mlp", ADAM), ("cnn", ADAM)]
)
def test_recorded_steps_have_the_bits_of_the_steps_themselves(name, optimizer, recorder):
    expected, _ = updates_of(setup_of(built(name), "stacked", **optimizer))
    actual, note = updates_of(setup_of(built(name), "recorded", **optimizer))
    assert all(map(torch.equal, actual, expected))
    n_kinds = 3 if name == "mlp" else 2  # sizes of batches, of stacked clients which have one
    assert recorder.recordings == n_kinds and recorder.replays > 4
    assert "kernel" not in note


class Penalty(Defense):
    """A loss of a plugin."""

    def loss(self, logits, batch, ctx):
        return cross_entropy(logits, batch.y) + 0.1 * logits.square().mean()


@pytest.mark.parametrize("name", ["mlp", "cnn"])
def test_a_member_runs_its_phases_and_the_other_clients_replay(name, recorder):
    expected, _ = updates_of(setup_of(built(name), "stacked", Penalty(), lr=SMALL))
    actual, _ = updates_of(setup_of(built(name), "recorded", Penalty(), lr=SMALL))
    assert all(map(torch.equal, actual, expected))
    n_plain_steps = 2 * 2 * (3 + 2)  # rounds, epochs, of the clients with 12 and 7 samples
    assert recorder.replays == (0 if name == "mlp" else n_plain_steps)


def nothing(step: Step) -> Step:
    return lambda: None


def without_draws(step: Step) -> Step:
    def replay() -> None:
        state = torch.get_rng_state()
        step()
        torch.set_rng_state(state)

    return replay


def at_its_own_rate(step: Step) -> Step:
    """Keep the learning rate of the recording, which is 0."""

    def replay() -> None:
        rate = step.__closure__ and recorded_rate(step)
        before = rate.clone()
        rate.zero_()
        step()
        rate.copy_(before)

    return replay


def without_gradient(step: Step) -> Step:
    """Take the optimiser's update alone."""

    def replay() -> None:
        group = group_of(step)
        group.optimizer.step(group.optimizer.rate)

    return replay


def failing(step: Step) -> Step:
    raise RuntimeError("operation not permitted when stream is capturing")


def group_of(step: Step):
    cells = dict(zip(step.__code__.co_freevars, step.__closure__, strict=True))
    return cells["self"].cell_contents


def recorded_rate(step: Step) -> torch.Tensor:
    return group_of(step).optimizer.rate


@pytest.mark.parametrize(
    "wrong", [nothing, without_draws, at_its_own_rate, without_gradient, failing]
)
def test_a_wrong_recording_is_refused_with_one_note(wrong, recorder):
    recorder.change = wrong
    expected, _ = updates_of(setup_of(built("dropout"), "stacked"))
    actual, note = updates_of(setup_of(built("dropout"), "recorded"))
    assert all(map(torch.equal, actual, expected))
    assert recorder.recordings == 1
    reason = "not permitted" if wrong is failing else "other bits than the step itself"
    assert note.count("ran kernel by kernel: ") == 1 and reason in note


def test_a_model_that_changed_is_recorded_anew(recorder):
    training = Training(setup_of(built("dropout"), "recorded"))
    rounds = training.rounds()
    next(rounds)
    assert recorder.recordings == 2
    training.setup.flat.module[-2].p = 0.1  # the rate of dropout
    next(rounds)
    assert recorder.recordings == 4


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"name": "adam", "lr": 0.1, "keep_state": True}, "keep_state"),
        ({"hook": True}, "is hooked"),
    ],
)
def test_what_cannot_be_recorded_says_why(changes, reason, recorder):
    module = built("cnn")
    if changes.pop("hook", False):
        module[-1].register_forward_hook(lambda layer, args, out: 2 * out)
    _, note = updates_of(setup_of(module, "recorded", **changes))
    assert recorder.recordings == 0 and reason in note
