"""Attacks that compare one number of one round with a threshold, learnt from colluders; also
adaptive to MemberShield.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np
from numpy import ndarray
from pydantic import Field, model_validator

from fedbench.core import Audit, Colluder, Observations
from fedbench.plugins.attacks.classifiers import regression, standardised
from fedbench.plugins.attacks.measures import Measure, MeasuringAttack, float64
from fedbench.plugins.attacks.taught import Scorer, TaughtByRound, Teaching, score_by_fold


def best_threshold(value: ndarray, member: ndarray) -> float:
    """Return the tau of the largest TPR - FPR of "member iff value > tau", for ``value`` [n] and
    ``member`` [n] bool of both kinds.

    tau lies half way between two neighbouring values, or is the largest value. Of several equally
    good ones the highest: doubtful samples are no members. Where nothing beats an advantage of 0,
    no sample is a member. Source: Yeom et al., CSF 2018 (the advantage); Song & Mittal, USENIX
    Security 2021, section 3.2.1 (chosen on shadow data).
    """
    value = np.asarray(value, np.float64)
    member = np.asarray(member, bool)
    levels, level = np.unique(value, return_inverse=True)
    members = np.bincount(level[member], minlength=len(levels))
    non_members = np.bincount(level[~member], minlength=len(levels))
    # in whole numbers, so that equal advantages tie: how many lie above each level, times the size
    # of the other side
    members_above = members.sum() - members.cumsum()
    non_members_above = non_members.sum() - non_members.cumsum()
    advantage = members_above * non_members.sum() - non_members_above * members.sum()
    best = int(np.flatnonzero(advantage == advantage.max())[-1])
    if best == len(levels) - 1:
        return float(levels[best])
    return float(levels[best] / 2 + levels[best + 1] / 2)


def class_thresholds(value: ndarray, member: ndarray, y: ndarray, least: int) -> dict[int, float]:
    """Return the best threshold of each class of ``y`` [n], from its samples alone.

    A class with fewer than ``least`` members or non-members is left out: the threshold of all
    samples is for it.
    """
    thresholds = {}
    for c in np.unique(y).tolist():
        rows = y == c
        members = int(member[rows].sum())
        if min(members, int(rows.sum()) - members) >= least:
            thresholds[c] = best_threshold(value[rows], member[rows])
    return thresholds


class Threshold(TaughtByRound, MeasuringAttack):
    """Score = a measurement of one round minus a threshold, positive for those that the attack
    calls members.

    The threshold is the one of the largest advantage on the teacher's samples, in each round, for
    all classes together or for each by itself. A class with fewer than ``least`` members or
    non-members among the lessons has that of all classes. Two folds have two thresholds, chosen on
    one half of the samples for the other. What lies above its own has the lower one subtracted,
    what lies below it the higher one: so the choice decides who is called a member, and candidates
    of one class rank as the measurement ranks them, save those between both thresholds. Without a
    teacher the score is the measurement itself, and no sample is called a member.
    """

    class Params(Teaching):
        teacher: Literal["none", "colluder", "half"] = Field(  # type: ignore[assignment]
            "colluder",
            description="which membership chooses the threshold: a colluding client's, that of a "
            "random half of the candidates "
            "(judged on the other half), or none: the measurement as it is",
        )
        classes: bool = Field(
            False, description="a threshold for each class instead of one for all"
        )
        least: int = Field(
            5,
            ge=1,
            description="members and non-members a class needs among the lessons; with fewer, it "
            "has that of all classes",
        )

        @model_validator(mode="after")
        def _classes_need_a_teacher(self):
            if self.classes and self.teacher == "none":
                raise ValueError(
                    "thresholds per class are chosen on a teacher's samples: set teacher, or "
                    "classes to false"
                )
            return self

    @property
    def threshold(self) -> float | None:  # type: ignore[override]
        """0; None without a teacher and where half of the candidates teaches."""
        if self.params.teacher == "none":
            return None
        return super().threshold

    def fit(self, shadows: Sequence[Colluder], audit: Audit) -> None:
        if self.params.teacher != "none":
            super().fit(shadows, audit)

    def _features(self, observations: Observations, y: ndarray) -> ndarray:
        return self._measured(observations)[..., None]

    def _learn(self, x: ndarray, member: ndarray, y: ndarray, rng: np.random.Generator) -> Scorer:
        """Return a function from labels [n] to their thresholds [n]."""
        value = x[:, 0]
        of_class: dict[int, float] = {}
        if self.params.classes:
            of_class = class_thresholds(value, member, y, self.params.least)
        general = best_threshold(value, member)
        return lambda labels: np.array(
            [of_class.get(c, general) for c in labels.tolist()], np.float64
        )

    def _round(self, r: int, x: ndarray, audit: Audit) -> ndarray:
        if self.params.teacher == "none":
            return x[:, 0]
        return super()._round(r, x, audit)

    def _answer(self, models: Sequence[Scorer], fold: ndarray, x: ndarray, y: ndarray) -> ndarray:
        thresholds = np.stack([model(y) for model in models])  # [folds, n]
        threshold = thresholds[fold, np.arange(len(y))]
        value = x[:, 0]
        lower = thresholds.min(axis=0)
        higher = thresholds.max(axis=0)
        return value - np.where(value > threshold, lower, higher)


class ThresholdConfidence(Threshold):
    """Confidence in the label, as its log odds ln(p_y / (1 - p_y)): the same order as p_y, which is
    1 in float32 early.

    Source: Song & Mittal, USENIX Security 2021, section 3.2.1 (class-dependent thresholds); Salem
    et al., NDSS 2019.
    """

    measure = "rescaled"


class ThresholdEntropy(Threshold):
    """Minus the entropy of the prediction, which does not look at the label.

    Source: Salem et al., NDSS 2019, adversary 3; Song & Mittal, USENIX Security 2021, section
    3.2.1.
    """

    measure = "entropy"


class ThresholdModifiedEntropy(Threshold):
    """Minus the modified entropy: 0 where the prediction is sure and right, without bound where it
    is sure and wrong.

    Source: Song & Mittal, USENIX Security 2021, section 3.2.2 and equation 6.
    """

    measure = "modified-entropy"


class ThresholdLoss(Threshold):
    """Minus the loss.

    Source: Yeom et al., CSF 2018, adversary 2, who take the mean training loss as threshold.
    """

    measure = "loss"


class LabelOnly(Threshold):
    """Score = the signal ``robustness``: how well the label holds under augmentations and noise, of
    one round.

    It reads predicted labels alone, so masking the confidences does not stop it. The signal has few
    values, and candidates tie: they count one half in the AUC, and TF01 can be 0 for that alone.
    Source: Choquette-Choo et al., ICML 2021, sections 3.3 (augmentations) and 3.4 (noise as
    distance to the boundary).
    """

    measure = "robustness"


class AdaptiveMemberShield(Threshold):
    """Score = minus the loss against the softened label, (1 - theta) CE + theta mean_c(-ln p_c), in
    one round.

    A client that trains on y' = (1 - theta) onehot + theta / C brings its members to p = y': the
    plain loss takes a more confident non-member for a member, the loss against y' is least at y'
    itself. ``form: trained`` is a logistic regression on the logits, the loss, the mean loss over
    all classes and the loss against y'. How long the target trains is not among the observations; a
    colluder that runs the same defense stops by the same rule, so that its models teach it. The
    note of the cell says "(defended)" of a colluder that does; one that is not teaches another
    distribution. Source: MemberShield, section 7.8 and Table 12 (Song & Mittal's adaptive attack:
    thresholds and attack models fitted with the same soft labels and early stopping).
    """

    class Params(Threshold.Params):
        theta: float = Field(
            0.8,
            ge=0,
            lt=1,
            description="share of the uniform distribution in the target's soft labels",
        )
        form: Literal["threshold", "trained"] = Field(
            "threshold",
            description="a threshold on the loss against the soft labels, or a classifier that "
            "reads it",
        )

        @model_validator(mode="after")
        def _what_is_trained_has_a_teacher(self):
            if self.form == "trained" and self.teacher == "none":
                raise ValueError(
                    "form 'trained' learns from a teacher: set teacher to colluder or half"
                )
            if self.form == "trained" and self.classes:
                raise ValueError(
                    "'classes' belongs to the form 'threshold': set form to threshold, or classes "
                    "to false"
                )
            return self

    @property
    def reads(self) -> Measure:
        """Minus the loss against soft labels."""
        return Measure(frozenset({"loss", "uniform-loss"}), self._minus_soft_loss)

    @property
    def needs(self) -> frozenset[str]:  # type: ignore[override]
        """The signals of the loss against soft labels; the classifier reads the logits, too."""
        if self._is_trained:
            return self.reads.needs | {"logits"}
        return self.reads.needs

    @property
    def _is_trained(self) -> bool:
        return self.params.form == "trained"

    def _minus_soft_loss(self, observations: Observations) -> ndarray:
        """Return [R, M, n]: cross-entropy is linear in the label, so the soft label's is a mean of
        two.
        """
        theta = self.params.theta
        loss = float64(observations, "loss")
        uniform = float64(observations, "uniform-loss")
        return -((1 - theta) * loss + theta * uniform)

    def _features(self, observations: Observations, y: ndarray) -> ndarray:
        features = [super()._features(observations, y)]
        if self._is_trained:
            features += [observations.of_target(n)[..., None] for n in ("loss", "uniform-loss")]
            features.append(observations.of_target("logits"))
        return np.concatenate(features, axis=2, dtype=np.float64)

    def _learn(self, x: ndarray, member: ndarray, y: ndarray, rng: np.random.Generator) -> Scorer:
        if self._is_trained:
            return standardised(regression, x, member, rng)
        return super()._learn(x, member, y, rng)

    def _answer(self, models: Sequence[Scorer], fold: ndarray, x: ndarray, y: ndarray) -> ndarray:
        if self._is_trained:
            return score_by_fold(models, fold, x)
        return super()._answer(models, fold, x, y)
