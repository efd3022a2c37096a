"""The four threshold attacks of one number of a prediction."""

from __future__ import annotations

from fedbench.plugins.attacks.thresholds.base import Threshold


class ThresholdConfidence(Threshold):
    """Confidence in the label, as its log odds ln(p_y / (1 - p_y)): the same order as p_y, which is 1 in float32 early.

    Source: Song & Mittal, USENIX Security 2021, section 3.2.1 (class-dependent thresholds); Salem et al., NDSS 2019.
    """

    measure = "rescaled"


class ThresholdEntropy(Threshold):
    """Minus the entropy of the prediction, which does not look at the label.

    Source: Salem et al., NDSS 2019, adversary 3; Song & Mittal, USENIX Security 2021, section 3.2.1.
    """

    measure = "entropy"


class ThresholdModifiedEntropy(Threshold):
    """Minus the modified entropy: 0 where the prediction is sure and right, without bound where it is sure and wrong.

    Source: Song & Mittal, USENIX Security 2021, section 3.2.2 and equation 6.
    """

    measure = "modified-entropy"


class ThresholdLoss(Threshold):
    """Minus the loss. Source: Yeom et al., CSF 2018, adversary 2, who take the mean training loss as threshold."""

    measure = "loss"
