"""The score is a mean over the rounds that count."""

import numpy as np
import pytest
import torch
from fedbench.core import Audit, Observations, SkipCell
from fedbench_merlin.merlin import Merlin

NAN = float("nan")


def score(ratios, **params):
    """Scores of a target with these ratios, a list a round."""
    ratios = np.array(ratios, dtype=np.float32)
    observed = Observations(
        view="server",
        rounds=np.arange(len(ratios)),
        clients=np.array([2]),
        target=0,
        signals={"loss-rises": ratios[:, None]},
    )
    ids = np.arange(ratios.shape[1])
    audit = Audit(
        key=0, device=torch.device("cpu"), ids=ids, y=0 * ids, n_classes=2, target_client=2
    )
    return Merlin(**params).score(observed, audit)


def test_it_is_the_mean_over_the_rounds_with_the_target():
    assert score([[0, 1], [NAN, NAN], [0.5, 1]]).tolist() == [0.25, 1]


def test_only_the_last_rounds_count_if_so_wished():
    assert score([[0, 1], [0.5, 0], [NAN, NAN]], rounds=1).tolist() == [0.5, 0]


def test_without_the_target_there_is_no_cell():
    with pytest.raises(SkipCell, match="took part in none"):
        score([[NAN, NAN]])
