"""Synthetic federations in front of passive attacks: what each client's model says of a sample,
with or without a leak.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cache
from importlib import import_module
from statistics import NormalDist

import numpy as np
import torch
from sklearn.metrics import roc_auc_score

from fedbench.core import Attack, Audit, Colluder, Observations, Probe
from fedbench.core.signals import fedbench_signals
from fedbench.core.signals.measure import GRADIENT_SIGNALS
from fedbench.plugins.attacks import fedbench_attacks

TARGET, COLLUDER = 2, 0


def component(c):
    module, name = c.target.split(":")
    return getattr(import_module(module), name)


def attack(name: str, **params) -> Attack:
    """A built-in attack by its name."""
    return component({c.name: c for c in fedbench_attacks()}[name])(**params)


def measured(name: str, logits: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """[n]: a built-in signal that is computed from logits and labels."""
    cls = {c.name: component(c) for c in fedbench_signals()}[name]
    return cls().measure(Probe(torch.nn.Identity(), torch.zeros(1), logits, y, logits))


def of_logits() -> list[str]:
    """Names of the signals that need logits and labels only."""
    others = {*GRADIENT_SIGNALS, "upload-grad-sq", "robustness"}
    return [c.name for c in fedbench_signals() if c.name not in others]


def auc(score: np.ndarray, member: np.ndarray) -> float:
    return float(roc_auc_score(member, score))


def chance_band(member: np.ndarray) -> float:
    """Four standard errors of the AUC without any signal (Hanley & McNeil, 1982)."""
    m, n = member.sum(), (~member).sum()
    return 4 * math.sqrt((m + n + 1) / (12 * m * n))


@dataclass
class World:
    """A synthetic federation: ``owner`` [n] is the client that trained on a sample, -1 for none."""

    observations: Observations
    owner: np.ndarray
    ids: np.ndarray
    y: np.ndarray

    @property
    def member(self) -> np.ndarray:
        return self.owner == TARGET

    def audit(self) -> Audit:
        return Audit(
            key=7,
            device=torch.device("cpu"),
            ids=self.ids,
            y=self.y,
            n_classes=4,
            target_client=TARGET,
        )

    def score(self, attack: Attack) -> np.ndarray:
        """[n]: what an attack without a teacher says."""
        return attack.score(self.observations, self.audit())


@cache
def world(
    leak: float, members: int, strangers: int, rounds: int = 6, clients: int = 6, seed: int = 0
) -> World:
    """Non-members are outsiders and the other clients' samples, half and half. ``leak``: what
    training on a sample adds to its margin per round and to its gradient's cosine, in units of the
    noise.
    """
    rng = np.random.default_rng(seed)
    n = members + strangers
    owner = np.full(n, -1)
    owner[:members] = TARGET
    others = [k for k in range(clients) if k != TARGET]
    owner[members : members + strangers // 2] = np.resize(others, strangers // 2)
    owner = owner[rng.permutation(n)]
    trained = owner[None, None, :] == np.arange(clients)[None, :, None]  # [1, M, n]
    t = np.arange(1, rounds + 1)[:, None, None]
    noise = rng.normal(size=(rounds, clients, n))
    margin = rng.normal(0, 1, n) + 0.2 * t + noise + leak * trained * t / 3
    y = rng.integers(0, 4, n)
    logits = torch.from_numpy(0.3 * rng.normal(size=(rounds, clients, n, 4)))
    label = torch.from_numpy(y).expand(rounds, clients, n)
    logits.scatter_add_(3, label.unsqueeze(3), torch.from_numpy(margin).unsqueeze(3))
    flat, flat_y = logits.reshape(-1, 4), label.reshape(-1)
    signals = {
        name: measured(name, flat, flat_y).unflatten(0, (rounds, clients, n)).numpy()
        for name in of_logits()
    }
    sq, update_sq = rng.lognormal(size=(rounds, 1, n)), rng.lognormal(size=(rounds, clients, 1))
    cosine = 0.05 * (rng.normal(size=n) + rng.normal(size=(rounds, clients, n)) + leak * trained)
    signals |= {
        "grad-dot": cosine * np.sqrt(sq * update_sq),
        "grad-sq": sq,
        "update-sq": update_sq,
        "logits": logits.numpy(),
    }
    p = np.exp(-signals["loss"].astype(np.float64))
    signals |= {
        "upload-grad-sq": (1 - p) ** 2 * rng.lognormal(0, 0.2, p.shape),
        "robustness": np.round(8 * p) / 8,
    }
    signals = {name: a.astype(np.float32) for name, a in signals.items()}
    seen = Observations(
        view="server",
        rounds=10 * np.arange(1, rounds + 1),
        clients=np.arange(clients),
        target=TARGET,
        signals=signals,
    )
    return World(seen, owner, rng.permutation(10 * n)[:n], y)


def with_signals(w: World, **changed: np.ndarray) -> World:
    signals = dict(w.observations.signals) | {k.replace("_", "-"): v for k, v in changed.items()}
    return replace(w, observations=replace(w.observations, signals=signals))


def without_round(w: World, r: int) -> World:
    keep = np.arange(len(w.observations.rounds)) != r
    signals = {name: a[keep] for name, a in w.observations.signals.items()}
    return replace(
        w, observations=replace(w.observations, rounds=w.observations.rounds[keep], signals=signals)
    )


def with_absence(w: World, client: int, *rounds: int) -> World:
    signals = {name: a.copy() for name, a in w.observations.signals.items()}
    for a in signals.values():
        if a.shape[1] > 1:
            a[list(rounds), client] = np.nan
    return replace(w, observations=replace(w.observations, signals=signals))


SMALL = world(1.0, 40, 160, seed=5)


# --- views and teachers ---------------------------------------------------------------------------


def shown(
    w: World, view: str = "server", client: int = TARGET, rows: np.ndarray | None = None
) -> Observations:
    """What a view shows of a client's samples. The global model has learnt all samples: of each it
    says what its owner's says.
    """
    seen = w.observations
    pick = np.arange(len(w.ids)) if rows is None else rows
    signals = {n: a[:, :, pick] if a.shape[2] > 1 else a for n, a in seen.signals.items()}
    if view == "server":
        return replace(seen, target=client, signals=signals)
    owner, n = np.maximum(w.owner, 0)[pick], len(pick)
    one = {
        name: a[:, owner, np.arange(n)][:, None] if a.shape[1:3] == (6, n) else a[:, :1]
        for name, a in signals.items()
    }
    return replace(seen, view="client", clients=np.array([-1]), target=0, signals=one)


def colluder(w: World, view: str = "server", client: int = COLLUDER) -> Colluder:
    """A client that tells which samples are its own."""
    member = w.owner == client
    return Colluder(
        client=client,
        observations=shown(w, view, client),
        ids=w.ids,
        y=w.y,
        member=member,
        defended=False,
    )


def taught(attack, w: World):
    """The attack, after the lessons that its parameters ask for; None of them for a threshold
    without a teacher.
    """
    if attack.colluders:
        attack.fit(
            [colluder(w, attack.view, k) for k in (0, 1, 3)[: attack.colluders]],
            replace(w.audit(), target_client=-1),
        )
    return attack


# --- slow references ------------------------------------------------------------------------------


def slow_filter(kind: str, v: np.ndarray) -> np.ndarray:
    """Those of the other clients' values that a filter keeps."""
    if kind == "3sigma_pop":
        return v[v < v.mean() + 3 * v.std()]
    if kind == "mad":
        return v[v <= np.median(v) + 3 * 1.4826 * np.median(np.abs(v - np.median(v)))]
    if kind == "loo":
        rest = [np.delete(v, i) for i in range(len(v))]
        return np.array(
            [a for a, r in zip(v, rest, strict=True) if a <= r.mean() + 3 * r.std(ddof=1)]
        )
    return v


def slow_fedmia(measure: np.ndarray, kind: str = "none", ddof: int = 1) -> np.ndarray:
    """[n]: equations 8-12 sample by sample; ``measure``: [R, M, n], NaN where a client is
    absent.
    """
    terms = np.empty((len(measure), measure.shape[2]))
    for r, i in np.ndindex(terms.shape):
        others = np.delete(measure[r, :, i], TARGET)
        kept = slow_filter(kind, others[~np.isnan(others)])
        variance = ((kept - kept.mean()) ** 2).sum() / (len(kept) - ddof) + 1e-8
        terms[r, i] = NormalDist(kept.mean(), math.sqrt(variance)).cdf(measure[r, TARGET, i])
    return terms.mean(axis=0)


def slow_net(
    x: torch.Tensor,
    member: torch.Tensor,
    epochs: int,
    generator: torch.Generator,
    decay: float = 0.0,
):
    """The logits of a net with 64 hidden ReLUs, as a function: PyTorch's initial weights, Adam on
    batches of 128.
    """
    d = x.shape[1]
    sizes, bounds = [64 * d, 64, 64, 1], [d**-0.5, d**-0.5, 1 / 8, 1 / 8]
    drawn = [
        torch.empty(n).uniform_(-at, at, generator=generator)
        for n, at in zip(sizes, bounds, strict=True)
    ]
    params, first, second, steps = torch.cat(drawn).requires_grad_(), 0.0, 0.0, 0

    def logits(asked: torch.Tensor) -> torch.Tensor:
        w, b, v, c = params.split(sizes)
        return (asked @ w.view(64, d).T + b).relu() @ v + c

    for _ in range(epochs):
        for batch in torch.randperm(len(x), generator=generator).split(128):
            p, steps = logits(x[batch]).sigmoid(), steps + 1
            (g,) = torch.autograd.grad(
                -torch.where(member[batch], p.log(), (1 - p).log()).mean(), params
            )
            g = g + decay * params.detach()
            first, second = 0.9 * first + 0.1 * g, 0.999 * second + 0.001 * g**2
            params.data -= (
                1e-3 * first / (1 - 0.9**steps) / ((second / (1 - 0.999**steps)).sqrt() + 1e-8)
            )
    return lambda asked: logits(asked).detach()
