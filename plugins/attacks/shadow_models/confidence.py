"""What the attacks on shadow models share: the shadows of a cell, and confidences straight from logits."""

from __future__ import annotations

import numpy as np

from fedbench.core import Observations, ShadowModels, SkipCell

LEAST_MODELS = 2


def shadow_models_of(observations: Observations) -> ShadowModels:
    """The shadow models; raises ``SkipCell`` where there are none, too few, or one of them diverged."""
    shadows = observations.shadow_models
    if shadows is None:
        raise SkipCell("this attack needs shadow models; give the setting audit.shadow")
    models = len(shadows.logits)
    if models < LEAST_MODELS:
        raise SkipCell(f"this attack needs at least {LEAST_MODELS} shadow models; audit.shadow gives {models}")
    if shadows.shadow_member.shape[1] == 0:
        raise SkipCell("there are no shadow samples; give audit.shadow some data")
    for m in range(models):
        if not (np.isfinite(shadows.logits[m]).all() and np.isfinite(shadows.shadow_logits[m]).all()):
            raise SkipCell(f"shadow model {m} diverged: its logits are not finite")
    return shadows


def rescaled_confidence(logits: np.ndarray, y: np.ndarray) -> np.ndarray:
    """ln(p_y / (1 - p_y)), [n] float64, for ``logits`` [n, C] with C >= 2 and labels ``y`` [n].

    Computed as z_y - logsumexp of the other logits: finite for every finite logit, since p_y itself is never formed.
    Source: Carlini et al. (LiRA), S&P 2022, the "logit scaling" of the confidence.
    """
    others = np.array(logits, np.float64)
    label = y[:, None]
    own = np.take_along_axis(others, label, axis=1)[:, 0]
    np.put_along_axis(others, label, -np.inf, axis=1)
    top = others.max(axis=1)
    return own - top - np.log(np.exp(others - top[:, None]).sum(axis=1))


def log_confidence(logits: np.ndarray, y: np.ndarray) -> np.ndarray:
    """ln p_y, [n] float64, for ``logits`` [n, C] and labels ``y`` [n]; exact where p_y is next to 0 or to 1."""
    return -np.logaddexp(0.0, -rescaled_confidence(logits, y))
