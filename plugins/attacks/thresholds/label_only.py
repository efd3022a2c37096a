"""Label-only: how far a sample is from the decision boundary, as a user of the model sees it."""

from __future__ import annotations

from fedbench.plugins.attacks.measures import Measure, signal
from fedbench.plugins.attacks.thresholds.base import Threshold


class LabelOnly(Threshold):
    """Score = the signal ``robustness``: how well the label holds under augmentations and noise, of one round.

    It reads predicted labels alone, so masking the confidences does not stop it. The signal has few values, and candidates
    tie: they count one half in the AUC, and TF01 can be 0 for that alone.
    Source: Choquette-Choo et al., ICML 2021, sections 3.3 (augmentations) and 3.4 (noise as distance to the boundary).
    """

    @property
    def reads(self) -> Measure:
        return signal("robustness")
