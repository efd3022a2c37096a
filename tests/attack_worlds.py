"""Worlds in front of the trained attacks: ``worlds.world`` with what these attacks read besides."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import numpy as np
from worlds import COLLUDER, TARGET, World, auc, world

from fedbench.core import Colluder, Observations

CLASSES = 4


@cache
def rich_world(leak: float, members: int = 400, strangers: int = 1600, seed: int = 0, rounds: int = 4) -> World:
    """With ``logits`` [R, M, n, C] that have the world's confidence, ``uniform-loss``, ``upload-grad-sq`` and ``robustness``."""
    w = world(leak, members, strangers, rounds=rounds, seed=seed)
    seen, rng = w.observations, np.random.default_rng(seed + 1)
    margin = np.asarray(seen["logit-confidence"], np.float64)
    others = 0.3 * rng.normal(size=(*margin.shape, CLASSES))
    label = np.broadcast_to(w.y, margin.shape)[..., None]
    np.put_along_axis(others, label, -np.inf, axis=3)
    rest = np.log(np.exp(others).sum(axis=3))
    np.put_along_axis(others, label, (margin + rest)[..., None], axis=3)
    log_p = others - np.log(np.exp(others).sum(axis=3, keepdims=True))
    missing = 1 - np.exp(-np.asarray(seen["loss"], np.float64))
    signals = dict(seen.signals) | {
        "logits": others, "uniform-loss": -log_p.mean(axis=3), "upload-grad-sq": missing**2 * rng.lognormal(0, 0.2, margin.shape),
        "robustness": np.round(8 * np.exp(-np.asarray(seen["loss"]))) / 8,
    }  # fmt: skip
    signals = {name: a.astype(np.float32) for name, a in signals.items()}
    return replace(w, observations=replace(seen, signals=signals))


def shown(w: World, view: str = "server", client: int = TARGET, rows: np.ndarray | None = None) -> Observations:
    """What a view shows of a client's samples. The global model has learnt everybody's: of each it says what its owner's says."""
    seen = w.observations
    pick = np.arange(len(w.ids)) if rows is None else rows
    signals = {n: a[:, :, pick] if a.shape[2] > 1 else a for n, a in seen.signals.items()}
    if view == "server":
        return replace(seen, target=client, signals=signals)
    row = np.maximum(w.owner, 0)[None, None, pick]
    one = {
        n: np.take_along_axis(a, row if a.ndim == 3 else row[..., None], axis=1) if a.shape[1:3] == (6, len(pick)) else a[:, :1]
        for n, a in signals.items()
    }  # fmt: skip
    return replace(seen, view="client", clients=np.array([-1]), target=0, signals=one)


def colluder(w: World, view: str = "server", client: int = COLLUDER) -> Colluder:
    """A client that tells which samples are its own."""
    member = w.owner == client
    return Colluder(client=client, observations=shown(w, view, client), ids=w.ids, y=w.y, member=member, defended=False)


def taught(attack, w: World, key: int = 7):
    """The attack, after the lessons that its parameters ask for; None of them for a threshold without a teacher."""
    if attack.colluders:
        attack.fit([colluder(w, attack.view, k) for k in (0, 1, 3)[: attack.colluders]], replace(w.audit(key), target_client=-1))
    return attack


def halved(w: World) -> np.ndarray:
    """[n] bool: a random half of the members and of the others."""
    first = np.zeros(len(w.ids), bool)
    for side in (w.member, ~w.member):
        at = np.random.default_rng(4).permutation(np.flatnonzero(side))
        first[at[: len(at) // 2]] = True
    return first


def scored(attack, w: World, key: int = 7) -> np.ndarray:
    """[n] scores as the engine would get them, whoever teaches."""
    audit = w.audit(key)
    if not getattr(attack, "knows_half", False):
        return taught(attack, w, key).score(shown(w, attack.view), audit)
    first, score = halved(w), np.empty(len(w.ids))
    for half in (first, ~first):
        here, there = np.flatnonzero(half), np.flatnonzero(~half)
        lesson = Colluder(
            client=TARGET, observations=shown(w, attack.view, rows=here), ids=w.ids[here], y=w.y[here], member=w.member[here],
            defended=False,
        )  # fmt: skip
        attack.fit([lesson], replace(audit, ids=w.ids[here], y=w.y[here]))
        score[there] = attack.score(shown(w, attack.view, rows=there), replace(audit, ids=w.ids[there], y=w.y[there]))
    return score


def found(score: np.ndarray, w: World) -> float:
    """AUC of the target's samples against those that nobody trained on: of the others the global model has learnt as well."""
    counted = w.member | (w.owner == -1)
    return auc(score[counted], w.member[counted])
