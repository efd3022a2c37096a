"""Every backend of the trainer ends where a plain autograd loop does, for each client by itself."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import replace

import numpy as np
import pytest
import torch
from fedavg import slow_fedavg
from tiny import tiny_setup, train_all
from torch import nn
from torch.nn.functional import cross_entropy, one_hot

from fedbench.core import Defense, MemberData, Selection
from fedbench.core.federation import stacked
from fedbench.core.federation.compose import composed
from fedbench.core.federation.loop import Training
from fedbench.core.federation.setup import Setup
from fedbench.core.federation.trainer import Trainer
from fedbench.core.numerics import gradients
from fedbench.core.numerics.chain import Chain
from fedbench.core.numerics.wrappers import Normalised
from fedbench.core.registry.components import Registry
from fedbench.testing.trials import train_defense


@pytest.fixture(autouse=True)
def doubles():
    """Models, data and updates are float64, so that rounding hides no mistake."""
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


# -- random models and federations -----------------------------------------------------------------


class Mixing(nn.Module):
    """Each sample's output depends on the whole batch."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x - x.mean(0)


class Norm(nn.BatchNorm1d):
    """Batch norm that leaves a sample alone as it is."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x) if len(x) > 1 else x


def body(kind: str, d: int, rng: np.random.Generator) -> list[nn.Module]:
    """Layers from [B, d] to [B, width], most of them stackable; the last entry's width is the
    caller's to find.
    """
    layers: list[nn.Module] = [nn.Flatten()] if kind == "images" or rng.random() < 0.7 else []
    for _ in range(rng.integers(0, 3)):
        width = int(rng.integers(1, 9))
        act = [nn.ReLU(), nn.ReLU(inplace=True), nn.Tanh()][rng.integers(3)]
        layers += (
            [nn.Sequential(nn.Linear(d, width), act)]
            if rng.random() < 0.3
            else [nn.Linear(d, width), act]
        )
        d = width
    odd = {"dropout": nn.Dropout(0.4), "batch norm": Norm(d), "gelu": nn.GELU(), "mixing": Mixing()}
    return [*layers, *([odd[kind]] if kind in odd else [])]


KINDS = ["plain"] * 5 + [
    "dropout",
    "batch norm",
    "gelu",
    "mixing",
    "conv",
    "images",
    "hook",
    "tied",
]


# of models that cannot be stacked
NOTES = {
    "dropout": "draws random numbers",
    "gelu": "(GELU) is no layer",
    "mixing": "(Mixing)",
    "hook": "of it is hooked",
}


def drawn_model(
    kind: str, rng: np.random.Generator, classes: int
) -> tuple[nn.Module, tuple[int, ...]]:
    """A model in float64 and the shape of its inputs."""
    if kind == "conv":
        net = nn.Sequential(
            nn.Conv2d(2, 4, 3, padding=1),
            nn.GroupNorm(2, 4),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Flatten(),
            nn.Linear(16, classes),
        )
        return net, (2, 4, 4)
    if kind == "tied":
        shared = nn.Linear(5, 5)
        return nn.Sequential(nn.Flatten(), shared, nn.Tanh(), shared, nn.Linear(5, classes)), (5,)
    shape = (3, 2, 2) if kind == "images" else (int(rng.integers(1, 7)),)
    layers = body(kind, int(np.prod(shape)), rng)
    with torch.no_grad():
        width = nn.Sequential(*layers).eval()(torch.zeros(1, *shape)).shape[1]
    net = nn.Sequential(*layers, nn.Linear(width, classes))
    if kind == "hook":
        net[-1].register_forward_hook(lambda layer, args, out: 2 * out)
    return (Normalised(net, (0.4,) * 3, (0.3,) * 3), shape) if kind == "images" else (net, shape)


def drawn_clients(
    rng: np.random.Generator, shape: tuple[int, ...], classes: int, least: int
) -> list[MemberData]:
    clients = []
    for _ in range(rng.integers(1, 9)):
        n = int(rng.integers(least, 14))
        y = torch.from_numpy(rng.integers(0, classes, n))
        soft = torch.from_numpy(rng.dirichlet(np.ones(classes), n)) if rng.random() < 0.2 else None
        held = torch.from_numpy(rng.random(n) < 0.5) if rng.random() < 0.4 else None
        if held is not None:
            held[:2] = False  # two to train on
        clients.append(MemberData(torch.from_numpy(rng.normal(size=(n, *shape))), y, soft, held))
    return clients


def drawn_setup(
    case: int, defense: Defense | None = None, backend: str = "auto"
) -> tuple[str, Setup]:
    """The kind of the ``case``-th random model, and a federation that trains it for three rounds,
    in some cases with a part of the clients in each; all are members.
    """
    rng = np.random.default_rng(case)
    torch.manual_seed(case)
    kind, classes = KINDS[case % len(KINDS)], int(rng.integers(2, 5))
    module, shape = drawn_model(kind, rng, classes)
    clients = drawn_clients(rng, shape, classes, least=2)
    sgd = {
        "name": "sgd",
        "lr": 0.1,
        "momentum": float(rng.choice([0, 0.9])),
        "weight_decay": float(rng.choice([0, 0.01])),
    }
    # a bias before a mean has no gradient but rounding, of which Adam makes a step
    adam = {"name": "adam", "lr": 0.01, "keep_state": bool(rng.random() < 0.5)}
    optimizer = sgd if rng.random() < 0.5 or kind in ("batch norm", "mixing") else adam
    setup = tiny_setup(
        defense,
        members=tuple(range(len(clients))) if defense else (),
        module=module,
        clients=clients,
        seed=case,
        local_epochs=int(rng.integers(1, 3)),
        batch_size=int(rng.integers(2, 6)),
        local_batches=int(rng.integers(1, 4)) if rng.random() < 0.2 else None,
        participation=float(rng.choice([0.5, 0.7, 1])),
        backend=backend,
        **optimizer,
    )
    return kind, replace(setup, n_classes=classes)


def ends(setup: Setup) -> list[torch.Tensor]:
    """The updates [K, P] of each round."""
    return [result.uploads.updates.clone() for result in Training(setup).rounds()]


def vector(module: nn.Module, state: dict[str, torch.Tensor]) -> torch.Tensor:
    """[P]: the parameters of a module's state."""
    return torch.cat([state[name].flatten() for name, _ in module.named_parameters()])


@pytest.mark.parametrize(
    "cases", [range(52), pytest.param(range(52, 1000), marks=pytest.mark.slow)]
)
def test_random_cohorts_end_where_a_plain_autograd_loop_ends(cases, monkeypatch):
    monkeypatch.setattr(stacked, "_STEPS", 3)
    together = several = 0
    for case in cases:
        kind, setup = drawn_setup(case)
        # batch norm divides by small deviations, round after round, which magnifies rounding
        atol = 1e-9 if kind == "batch norm" else 1e-11
        chain = Chain.of(setup.flat, setup.clients[0].x)
        stacks = chain is not None and chain.stackable and len(setup.clients) > 1
        assert (kind in ("plain", "images")) == (chain is not None and chain.stackable), (
            case,
            kind,
        )
        untrained = deepcopy(setup.flat.module).train()
        rounds = [result.uploads for result in train_all(setup)[1]]
        sent = [uploads.participants for uploads in rounds]
        start = vector(untrained, untrained.state_dict())
        states = slow_fedavg(setup, sent, lambda model=untrained: deepcopy(model))
        for uploads, (*ends_of, mean) in zip(rounds, states, strict=True):
            expected = torch.stack([vector(untrained, end) for end in ends_of]) - start
            told = lambda m, c=case, t=uploads.round: f"case {c}, round {t}: {m}"  # noqa: E731
            torch.testing.assert_close(uploads.updates, expected, rtol=1e-9, atol=atol, msg=told)
            start = vector(untrained, mean)
        several += setup.config.optimizer.keep_state and len({u.participants for u in rounds}) > 1
        noted = (
            kind in ("dropout", "batch norm", "gelu", "mixing", "hook", "tied")
            and len(setup.clients) > 1
        )
        note = Trainer(setup).note
        assert bool(note) == noted, (case, kind)
        if noted:
            assert NOTES.get(kind, "") in note
        together += stacks
    assert together > len(cases) / 4 and several > len(cases) / 30


# -- defended members ------------------------------------------------------------------------------


class Decay(Defense):
    """A loss that depends on the parameters past the logits, and on a forward pass of its own."""

    def loss(self, logits, batch, ctx):
        other, last = ctx.model(batch.x + 0.1 * ctx.randn_like(batch.x)), ctx.model[-1].weight
        return (
            cross_entropy(logits, batch.y)
            + 0.1 * (other - logits).square().mean()
            + 0.01 * last.square().sum()
        )


class Penalty(Defense):
    """A loss with the gradient's norm in it, by autograd."""

    def loss(self, logits, batch, ctx):
        loss = cross_entropy(logits, batch.y)
        grads = torch.autograd.grad(loss, list(ctx.model.parameters()), create_graph=True)
        return loss + 0.1 * sum(g.square().sum() for g in grads)


class Scaled(Defense):
    """A loss times the norm of its gradient; of one sample, the weights alone."""

    def loss(self, logits, batch, ctx):
        if len(batch.y) == 1:
            return sum(p.square().sum() for p in ctx.model.parameters())
        loss = cross_entropy(logits, batch.y)
        grads = torch.autograd.grad(loss, list(ctx.model.parameters()), retain_graph=True)
        return loss * sum(g.square().sum() for g in grads)


class Views(Defense):
    """Noisy copies, twice as many rows, soft targets for some; draws from torch's global generator,
    too.
    """

    def transform(self, batch, ctx):
        x = torch.cat([batch.x, batch.x + torch.rand(batch.x.shape) + ctx.randn_like(batch.x)])
        y = batch.y.repeat(2)
        soft = one_hot(y, ctx.federation.n_classes) * 0.9 + 0.03 if ctx.client % 2 else None
        return replace(batch, x=x, y=y, soft=soft)


class Clipped(Defense):
    """Clipped gradients with noise, of Poisson batches; a plain step for some clients."""

    def select(self, ctx):
        usable = ctx.data.trainable
        return Selection(
            usable,
            flag=usable % 2 == 0,
            poisson=ctx.client % 3 > 0,
            batches=None if ctx.round == 1 else 2,
        )

    def local_step(self, batch, ctx):
        if ctx.client % 4 == 3:
            return None
        bound = 0.5 if ctx.client % 4 else 0.5 + 0.1 * ctx.round
        return ctx.clipped_gradient(batch, bound).add_(0.1 * ctx.randn_like(ctx.params)) / max(
            len(batch.y), 1
        )


class Twice(Defense):
    """Two passes, which nothing but the member itself can order."""

    def local_train(self, ctx):
        ctx.train()
        ctx.train()


def composite() -> Defense:
    return composed([Views(), Decay(), Noisy()])


class Noisy(Defense):
    """Noise on the uploads, from a generator of its own."""

    def protect(self, update, ctx):
        return update + 0.1 * ctx.randn_like(update)


class Floats(Defense):
    """Samples of another type than the other clients' bytes."""

    def prepare(self, data, ctx):
        return replace(data, x=ctx.normalise(data.x)) if ctx.client % 2 else data


class Through(Defense):
    """A batch that depends on the parameters, and a loss of the gradient at its samples."""

    def transform(self, batch, ctx):
        scale = (
            ctx.model(batch.x).square().mean()
            if ctx.client % 2
            else batch.x.new_ones(()).requires_grad_()
        )
        return replace(batch, x=batch.x * scale)

    def loss(self, logits, batch, ctx):
        loss = cross_entropy(logits, batch.y)
        return loss + torch.autograd.grad(loss, batch.x, create_graph=True)[0].square().sum()


class Left(Defense):
    """Gradients that the phases leave behind are no other batch's."""

    def loss(self, logits, batch, ctx):
        loss = cross_entropy(logits, batch.y)
        loss.backward(retain_graph=True)
        return loss * (1 + sum(p.grad.square().sum() for p in ctx.model.parameters())).reciprocal()


class InLoss(Defense):
    """Clipped gradients outside of the step that they are meant for."""

    def loss(self, logits, batch, ctx):
        return (
            cross_entropy(logits, batch.y)
            + 0.1 * ctx.clipped_gradient(batch, 0.5).square().sum() * logits.mean()
        )


class Noised(Defense):
    """Clipped gradients of samples that the member writes to."""

    def local_step(self, batch, ctx):
        batch.x.add_(ctx.randn_like(batch.x))
        return ctx.clipped_gradient(batch, 0.5) / max(len(batch.y), 1)


class Public(Defense):
    """All members train on the same tensors."""

    y = torch.tensor([0, 1, 1])

    def transform(self, batch, ctx):
        self.x = self.__dict__.get("x", batch.x.new_ones(3, *batch.x.shape[1:]))
        return replace(batch, x=self.x, y=self.y, index=batch.index.new_zeros(3), soft=None)

    def local_step(self, batch, ctx):
        return ctx.clipped_gradient(batch, 0.1)


class Nearby(Defense):
    """Clipped gradients at other parameters, and with a layer hooked, for a while."""

    def local_step(self, batch, ctx):
        layer = ctx.model[-1]
        with torch.no_grad():
            layer.weight.mul_(1.5)
            moved = ctx.clipped_gradient(batch, 0.5)
            layer.weight.div_(1.5)
        hook = layer.register_forward_hook(lambda layer, args, out: 2 * out)
        hooked = ctx.clipped_gradient(batch, 0.5)
        hook.remove()
        return (moved + hooked + ctx.clipped_gradient(batch, 0.5)) / max(len(batch.y), 1)


@pytest.mark.parametrize(
    "make",
    [
        Decay,
        Penalty,
        Scaled,
        Views,
        Clipped,
        Twice,
        composite,
        Through,
        Left,
        InLoss,
        Noised,
        Public,
        Nearby,
    ],
)
def test_members_end_where_each_ends_alone_with_autograd(make, monkeypatch):
    cases = [case for case in range(200) if KINDS[case % len(KINDS)] == "plain"][:9]
    for case in cases:
        found = ends(drawn_setup(case, make())[1])
        with monkeypatch.context() as plain:
            plain.setattr(gradients, "walked", lambda *args: None)
            expected = ends(drawn_setup(case, make(), "autograd")[1])
        for a, b in zip(found, expected, strict=True):
            torch.testing.assert_close(
                a, b, rtol=1e-8, atol=1e-10, msg=lambda m, c=case: f"{c}: {m}"
            )


@pytest.mark.parametrize("name", [c.name for c in Registry.discover().own("defense")])
def test_every_built_in_defense_ends_alike_on_both_backends(name):
    torch.set_default_dtype(torch.float32)
    made = Registry.discover().get("defense", name).load()
    params = {"every": 1} if name == "ifca-mir" else {}  # within the few rounds
    fast, plain = (
        train_defense(made(**params), federation={"backend": backend})
        for backend in ("auto", "autograd")
    )
    assert fast.assignment.tolist() == plain.assignment.tolist()
    for signal, values in plain.signals.items():
        np.testing.assert_allclose(fast.signals[signal], values, rtol=1e-3, atol=1e-5)


def test_members_whose_samples_are_floats_train_beside_clients_with_bytes():
    def made(backend: str) -> Setup:
        setup = drawn_setup(KINDS.index("images") + 2 * len(KINDS), Floats(), backend)[1]
        clients = [replace(d, x=(40 * d.x).to(torch.uint8)) for d in setup.clients]
        return replace(setup, clients=clients)

    setup = made("auto")
    assert isinstance(setup.flat.module, Normalised) and len(setup.clients) > 3
    for a, b in zip(ends(setup), ends(made("autograd")), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-8, atol=1e-10)


def test_one_client_with_much_data_does_not_widen_the_others(monkeypatch):
    sizes, stack = [], stacked._stacked

    def spy(*args):
        data = stack(*args)
        sizes.append(data.y.numel())
        return data

    monkeypatch.setattr(stacked, "_stacked", spy)
    clients = [
        MemberData(torch.randn(n, 3), torch.zeros(n, dtype=torch.int64)) for n in (640, 4, 4, 4)
    ]
    module = nn.Sequential(nn.Linear(3, 2))
    changes = {"members": (), "rounds": 1, "local_epochs": 1, "batch_size": 4}
    ends(tiny_setup(module=module, clients=clients, **changes))
    assert sum(sizes) <= 640 + 3 * 4 * 32
