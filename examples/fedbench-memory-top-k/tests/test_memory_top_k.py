"""Algorithm 1 of Qsparse-local-SGD, step by step."""

from types import SimpleNamespace

import pytest
import torch
from fedbench_memory_top_k.memory_top_k import MemoryTopK


def member(seed=0):
    """As much of a member's context as the method uses; one for all rounds, so that its memory
    stays.
    """
    generator = torch.Generator().manual_seed(seed)
    return SimpleNamespace(memory={}, randperm=lambda n: torch.randperm(n, generator=generator))


def updates(rounds, p=40):
    """[rounds, p]"""
    return torch.randn(rounds, p, generator=torch.Generator().manual_seed(3))


def test_two_rounds_by_hand():
    defense, ctx = MemoryTopK(share=0.5), member()
    assert defense.protect(torch.tensor([4.0, -1.0, 3.0, 0.5]), ctx).tolist() == [4, 0, 3, 0]
    assert ctx.memory["left"].tolist() == [0, -1, 0, 0.5]
    assert defense.protect(torch.tensor([0.5, -1.0, 0.2, 0.1]), ctx).tolist() == [
        0,
        -2,
        0,
        0.6000000238418579,
    ]
    assert ctx.memory["left"].tolist() == pytest.approx([0.5, 0, 0.2, 0])


@pytest.mark.parametrize("entries", ["largest", "random"])
def test_nothing_is_lost_whatever_was_sent_so_far(entries):
    defense, ctx, all_ = MemoryTopK(share=0.1, entries=entries), member(), updates(30)
    sent = torch.stack([defense.protect(update, ctx) for update in all_])
    assert ((sent != 0).sum(1) == 4).all()
    assert torch.allclose(sent.sum(0) + ctx.memory["left"], all_.sum(0), atol=1e-5)


def test_the_largest_are_those_of_the_sum_with_the_memory():
    defense, ctx, all_ = MemoryTopK(share=0.1), member(), updates(10)
    held = torch.zeros(40)
    for update in all_:
        owed = held + update
        expected = sorted(range(40), key=lambda i: -abs(float(owed[i])))[:4]
        sent = defense.protect(update, ctx)
        assert set(sent.nonzero().flatten().tolist()) == set(expected)
        held = owed - sent


def test_a_share_of_one_is_no_defense():
    defense, ctx, (update,) = MemoryTopK(share=1.0), member(), updates(1)
    assert torch.equal(defense.protect(update, ctx), update)


def test_it_reports_what_was_sent_and_what_is_left():
    facts = MemoryTopK(share=0.1).report(
        SimpleNamespace(
            federation=SimpleNamespace(n_params=40),
            of_member={0: {"left": torch.tensor([3.0, 4.0])}, 1: {}},
        )
    )
    assert facts == {"entries sent": 4, "held back": 5.0}
