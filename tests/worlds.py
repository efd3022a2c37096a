"""Synthetic federations in front of passive attacks: what each client's model says of a sample, with or without a leak."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from importlib import import_module
from statistics import NormalDist

import numpy as np
import torch
from sklearn.metrics import roc_auc_score

from fedbench.core import Audit, Colluder, Observations, Probe
from fedbench.core.signals import fedbench_signals

TARGET, COLLUDER = 2, 0


def component(c):
    module, name = c.target.split(":")
    return getattr(import_module(module), name)


def of_logits():
    """The announced signals that logits and labels are enough for."""
    return [c for c in fedbench_signals() if c.target.startswith("fedbench.core.signals.logits:")]


def measured(name: str, logits: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    cls = {c.name: component(c) for c in fedbench_signals()}[name]
    return cls().measure(Probe(torch.nn.Identity(), torch.zeros(1), logits, y, logits))


def auc(score: np.ndarray, member: np.ndarray) -> float:
    return float(roc_auc_score(member, score))


def tf01(score: np.ndarray, member: np.ndarray) -> float:
    """Largest TPR, percent, over thresholds with FPR <= 0.1 %."""
    out = np.sort(score[~member])[::-1]
    allowed = int(0.001 * len(out))
    return 100 * float((score[member] > out[allowed]).mean())


def chance_band(member: np.ndarray) -> float:
    """Four standard errors of the AUC without any signal (Hanley & McNeil, 1982)."""
    m, n = member.sum(), (~member).sum()
    return 4 * math.sqrt((m + n + 1) / (12 * m * n))


@dataclass
class World:
    """A synthetic federation: ``owner`` [n] is the client that trained on a sample, -1 for nobody."""

    observations: Observations
    owner: np.ndarray
    ids: np.ndarray
    y: np.ndarray

    @property
    def member(self) -> np.ndarray:
        return self.owner == TARGET

    def audit(self, key: int = 7) -> Audit:
        return Audit(key=key, device=torch.device("cpu"), ids=self.ids, y=self.y, n_classes=4, target_client=TARGET)

    def shadow(self) -> Colluder:
        seen = replace(self.observations, target=COLLUDER)
        return Colluder(client=COLLUDER, observations=seen, ids=self.ids, y=self.y, member=self.owner == COLLUDER, defended=False)


def world(leak: float, members: int = 2000, strangers: int = 10_000, rounds: int = 6, clients: int = 6, seed: int = 0):
    """Non-members are outsiders and the other clients' samples, half and half. ``leak``: what training on a sample adds
    to its margin per round and to its gradient's cosine, in units of the noise."""
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
    signals = {c.name: measured(c.name, flat, flat_y).unflatten(0, (rounds, clients, n)).numpy() for c in of_logits()}
    sq, update_sq = rng.lognormal(size=(rounds, 1, n)), rng.lognormal(size=(rounds, clients, 1))
    cosine = 0.05 * (rng.normal(size=n) + rng.normal(size=(rounds, clients, n)) + leak * trained)
    signals |= {"grad-dot": cosine * np.sqrt(sq * update_sq), "grad-sq": sq, "update-sq": update_sq}
    signals = {name: a.astype(np.float32) for name, a in signals.items()}
    seen = Observations(
        view="server", rounds=10 * np.arange(1, rounds + 1), clients=np.arange(clients), target=TARGET, signals=signals
    )
    return World(seen, owner, rng.permutation(10 * n)[:n], y)


def with_signals(w: World, **changed: np.ndarray) -> World:
    signals = dict(w.observations.signals) | {k.replace("_", "-"): v for k, v in changed.items()}
    return replace(w, observations=replace(w.observations, signals=signals))


def assert_chance(score: np.ndarray, member: np.ndarray) -> None:
    assert abs(auc(score, member) - 0.5) < chance_band(member)
    assert tf01(score, member) <= 0.5  # expected 0.11 %; of 2,000, 10 above the 11th non-member are beyond 4 sigma


def without_round(w: World, r: int) -> World:
    keep = np.arange(len(w.observations.rounds)) != r
    signals = {name: a[keep] for name, a in w.observations.signals.items()}
    return replace(w, observations=replace(w.observations, rounds=w.observations.rounds[keep], signals=signals))


def with_absence(w: World, client: int, r: int) -> World:
    signals = {name: a.copy() for name, a in w.observations.signals.items()}
    for a in signals.values():
        if a.shape[1] > 1:
            a[r, client] = np.nan
    return replace(w, observations=replace(w.observations, signals=signals))


SMALL = world(1.0, 40, 160, seed=5)


def slow_filter(kind: str, values: list[float]) -> list[float]:
    def mean(v):
        return sum(v) / len(v)

    def std(v, ddof):
        return math.sqrt(sum((a - mean(v)) ** 2 for a in v) / (len(v) - ddof))

    if kind == "3sigma_pop":
        return [v for v in values if v < mean(values) + 3 * std(values, 0)]
    if kind == "mad":
        median = float(np.median(values))
        return [v for v in values if v <= median + 3 * 1.4826 * float(np.median([abs(a - median) for a in values]))]
    if kind == "loo":
        rest = [values[:i] + values[i + 1 :] for i in range(len(values))]
        return [v for v, r in zip(values, rest, strict=True) if v <= mean(r) + 3 * std(r, 1)]
    return values


def slow_fedmia(measure: np.ndarray, kind: str, ddof: int) -> list[float]:
    """Equations 8-12 sample by sample; ``measure``: [R, M, n]."""
    scores = []
    for i in range(measure.shape[2]):
        terms = []
        for row in measure[:, :, i].tolist():
            target = row.pop(TARGET)
            kept = slow_filter(kind, row)
            mu = sum(kept) / len(kept) if kept else min(row)
            v = sum((a - mu) ** 2 for a in kept) / max(len(kept) - ddof, 1) + 1e-8
            terms.append(NormalDist(mu, math.sqrt(v)).cdf(target))
        scores.append(sum(terms) / len(terms))
    return scores


def one_round(loss: np.ndarray) -> Observations:
    """``loss``: [M, n], row 0 the target's."""
    return Observations(view="server", rounds=np.array([1]), clients=np.arange(len(loss)), target=0, signals={"loss": loss[None]})
