"""Rounds of ours beside those of a bare loop and of the frameworks that are installed here: those
of pfl-research's published CIFAR-10 workload, and of BlazeFL's with fewer clients.
"""

from __future__ import annotations

from contextlib import ExitStack

import pytest
from peers import PFL, Workload, started

WORKLOADS = {"pfl": PFL, "blazefl": Workload(clients=20, cohort=20, epochs=1)}


@pytest.mark.benchmark(group="frameworks")
@pytest.mark.parametrize("workload", WORKLOADS)
def test_rounds(beside, workload):
    with ExitStack() as stack:
        peers, _ = started(stack, WORKLOADS[workload])
        beside({name: peer.round for name, peer in peers.items()})
