"""``audit.references``: with how many other clients attacks compare a target."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from fedbench.core import Attack
from fedbench.core.population.audit import EVERYBODY
from fedbench.core.run.job import SignalRequest, identity
from fedbench.core.run.needs import compared, needed_rows
from fedbench.core.run.scoring import ask
from fedbench.testing.worlds import AUDIT, job_of, setting_of, train_job

CLIENTS = 8
FEDERATION = {"clients": CLIENTS, "rounds": 2, "local_epochs": 1}


def setting(references, **audit):
    return setting_of(federation=FEDERATION, audit=AUDIT | {"references": references} | audit)


class Notes(Attack):
    """Keeps what it is shown, and its lesson."""

    needs = frozenset({"loss", "grad-dot"})

    def __init__(self, view="server", colluders=0):
        self.view, self.colluders = view, colluders
        self.seen = {}

    def fit(self, shadows, audit):
        self.seen |= {lesson.client: lesson.observations for lesson in shadows}

    def score(self, observations, audit):
        self.seen[audit.target_client] = observations
        return np.zeros(len(audit.ids))


def seen(references, members=(1, 6), *attacks, **audit):
    """The training of a run with these attacks, which have then been shown its observations."""
    w = train_job(setting(references, **audit), attacks, members=members)
    for attack in attacks:
        ask(w.run, attack)
    return w.trained


@pytest.mark.parametrize("aligned", [True, False])
def test_a_target_is_beside_the_first_others_of_one_permutation(aligned):
    few, every = Notes(), Notes()
    drawn = seen(3, (1, 6), few, align_nonmembers=aligned)
    full = seen("all", (1, 6), every, align_nonmembers=aligned)
    others = [set(few.seen[k].clients.tolist()) - {k} for k in (1, 6)]
    assert [len(o) for o in others] == [3, 3] and len(others[0] | others[1]) <= 4
    assert full.rows == list(range(CLIENTS)) and set(drawn.rows) == {1, 6} | others[0] | others[1]
    for k, observations in few.seen.items():
        ids = observations.clients
        assert np.all(np.diff(ids) > 0) and ids[observations.target] == k
        np.testing.assert_array_equal(observations["loss"], every.seen[k]["loss"][:, ids])
        np.testing.assert_allclose(
            observations["grad-dot"], every.seen[k]["grad-dot"][:, ids], rtol=1e-4, atol=1e-6
        )


def test_the_coalitions_mean_is_beside_as_many_clients_outside_it():
    few = Notes("coalition")
    trained = seen(2, (1, 6), few)
    ids = few.seen[1].clients.tolist()
    assert (
        ids[0] == -2
        and len(ids) == 3
        and not {1, 6} & {*ids}
        and ids == few.seen[6].clients.tolist()
    )
    assert sorted(trained.rows) == sorted(ids)


def test_colluders_have_their_own_rows():
    taught, through = Notes("server", 2), Notes("coalition", 1)
    seen(2, (1, 6), taught, through, targets=[1, 7])  # 7 does not collude against itself
    assert {*taught.seen} == {1, 7, 5, 4} and {*through.seen} == {1, 7, 5}
    for k in taught.seen:
        observations = taught.seen[k]
        assert observations.clients[observations.target] == k and len(observations.clients) == 3


def test_analyses_and_targets_of_many_clients_see_all():
    job, *_ = job_of(setting(2))
    request = SignalRequest(needs=frozenset({"loss"}), view="server")
    assert (
        len(needed_rows(job, 1, [request]))
        < CLIENTS
        == len(needed_rows(replace(job, requests={"it": request}), 1, [request]))
    )
    together = replace(job, targets=(EVERYBODY,))
    assert together.references is None and compared(together, None, "coalition") == [
        *range(2, CLIENTS)
    ]


def test_it_is_part_of_a_run_where_it_leaves_clients_out():
    jobs = {n: job_of(setting(n))[0] for n in (2, 3, CLIENTS - 2, CLIENTS - 1, 64, "all")}
    keys = {n: job.run_key for n, job in jobs.items()}
    assert keys[CLIENTS - 1] == keys[64] == keys["all"] and len({*keys.values()}) == 4
    for n, job in jobs.items():
        stated = n if n in (2, 3, CLIENTS - 2) else None
        assert job.references == stated and job.described()["audit"].get("references") == stated
        assert identity(job)["setting"]["audit"].get("references") == stated
