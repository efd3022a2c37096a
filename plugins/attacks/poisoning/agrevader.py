"""AGREvader: poison covered by an honest update, as long as no distance gives it away."""

from __future__ import annotations

from typing import Literal

import torch
from pydantic import Field

from fedbench.core import Knowledge, norms
from fedbench.plugins.attacks.poisoning.correctness import Poisoning
from fedbench.plugins.attacks.poisoning.labels import ABOUT_DRAW, Draw, wrong_labels
from fedbench.plugins.attacks.poisoning.rows import Jitter, benign_rows, copies


class AGREvader(Poisoning):
    """Sends ``cover`` c + v if that is no further from a benign row than two benign rows are apart, else c alone.

    c: one pass over the mask set; v: one step on the attack set with wrong labels; distances are Euclidean.
    With fewer than two benign rows in sight nothing is close enough, and c alone is sent.
    Source: Zhang et al. (CCS 2023), who send the sum unconditionally (``always``); the condition is that of
    Mo et al. (FedPoisonMIA), ICCV 2025, appendix C.
    """

    class Params(Jitter):
        cover: float = Field(0.5, ge=0, description="weight of the cover update, no unit")
        always: bool = Field(False, description="send the sum whatever its distance, as AGREvader's own code does")
        labels: Draw = Field("uniform", description=ABOUT_DRAW)

    @property
    def knowledge(self) -> Literal["none", "own"]:  # type: ignore[override]
        """The condition needs something benign to compare with."""
        return "none" if self.params.always else "own"

    def craft(self, round: int, knowledge: Knowledge) -> torch.Tensor:
        """[m, P]."""
        cover = knowledge.train(knowledge.mask_x, knowledge.mask_y)
        poison = knowledge.step(knowledge.x, wrong_labels(knowledge, self.params.labels))
        mixed = self.params.cover * cover + poison
        hidden = self.params.always or is_close(mixed, benign_rows(knowledge))
        return copies(mixed if hidden else cover, knowledge, self.params.jitter)


def is_close(row: torch.Tensor, benign: torch.Tensor) -> bool:
    """Whether ``row`` [P] is no further from any of ``benign`` [n, P] than two of those are apart; False for n < 2."""
    if len(benign) < 2:
        return False
    apart = max(float(norms(benign[i + 1 :] - benign[i]).amax()) for i in range(len(benign) - 1))
    return float(norms(benign - row).amax()) <= apart
