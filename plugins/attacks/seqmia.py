"""SeqMIA: a recurrent net reads five signals along the rounds."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Literal

import numpy as np
import torch
from pydantic import Field

from fedbench.core import Attack, Audit, Observations, Params, Shadow, SkipCell
from fedbench.plugins.attacks.seqmia_net import SequenceNet, train

FEATURES = ("loss", "max-prob", "std-prob", "entropy", "modified-entropy")  # in the paper's order
FOLDS = 2


class SeqMIA(Attack):
    """Score = the net's member logit minus its non-member logit on the target's uploaded models.

    The net learns from one colluding client: its own models, its own members against the rest of the pool. Two-fold
    cross-fitting keeps learning and evaluation apart sample by sample: a candidate is scored by the net that never saw
    it. Source: Li et al. (CCS 2024, arXiv 2407.15098); the rounds of a federation take the place of their distilled
    snapshots, as in CoFedMID (appendix D).
    """

    class Params(Params):
        epochs: int = Field(150, ge=1, le=10_000, description="passes over the colluder's samples")
        standardise: bool = Field(
            True, description="shift and scale each signal by its mean and deviation on the training fold (paper: off)"
        )
        score: Literal["margin", "logit1"] = Field(
            "margin", description="margin: member minus non-member logit; logit1: the member logit alone (faithful)"
        )

    needs = frozenset(FEATURES)
    colluders = 1

    def fit(self, shadows: Sequence[Shadow], audit: Audit) -> None:
        if not shadows:
            raise SkipCell("no client other than the target is left to collude with the attacker")
        shadow = shadows[0]
        x = torch.from_numpy(sequences(shadow.observations))
        member = torch.from_numpy(shadow.member.astype(np.int64))
        self._key = audit.key
        fold = torch.from_numpy(folds(shadow.ids, self._key))
        self._nets: list[SequenceNet] = []
        for f in range(FOLDS):
            seen = fold != f
            if len(member[seen].unique()) < 2:
                raise SkipCell("the colluding client has too few samples to learn from in each fold")
            self._nets.append(
                train(x[seen], member[seen], self.params.epochs, self.params.standardise, audit.generator)
            )

    def score(self, observations: Observations, audit: Audit) -> np.ndarray:
        x, fold = torch.from_numpy(sequences(observations)), folds(audit.ids, self._key)
        score = np.empty(len(fold), np.float64)
        for f, net in enumerate(self._nets):
            unseen = fold == f
            with torch.no_grad():
                logits = net(x[unseen]).double().numpy()
            score[unseen] = logits[:, 1] - (logits[:, 0] if self.params.score == "margin" else 0.0)
        return score


def sequences(observations: Observations) -> np.ndarray:
    """[n, T, 5] float32: the signals on the target's row, over the rounds it took part in."""
    x = np.stack([observations.of_target(name) for name in FEATURES], axis=-1)  # [R, n, 5]
    x = x[~np.isnan(x).any(axis=(1, 2))]
    if len(x) == 0:
        raise SkipCell("the client took part in no audited round")
    return np.ascontiguousarray(x.transpose(1, 0, 2), dtype=np.float32)


def folds(ids: np.ndarray, key: int) -> np.ndarray:
    """[n] 0 or 1 by a keyed hash of the id alone, so that a sample is in one fold wherever it appears."""
    secret = (key & (2**64 - 1)).to_bytes(8, "little")
    return np.array([hashlib.blake2b(str(i).encode(), key=secret, digest_size=1).digest()[0] % FOLDS for i in ids])
