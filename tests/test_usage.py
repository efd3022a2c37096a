"""On what each client trained, and in how many rounds: counted where batches are made, and handed to analyses."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from jobs import use
from tiny import tiny_insider, tiny_setup, train_all

from fedbench.core import ActiveAttack, Analysis, Defense, Selection
from fedbench.core.experiment import cache
from fedbench.core.experiment.analyse import finished
from fedbench.core.experiment.pack import pack, unpack
from fedbench.core.experiment.run import Run
from fedbench.core.experiment.samples import used_samples
from fedbench.core.experiment.train import train
from fedbench.core.federation.compose import composed
from fedbench.testing.trials.world import job_of, setting_of


class Rotates(Defense):
    """Trains on the samples of this round's residue modulo 3; those at even positions with a flag."""

    def select(self, ctx):
        index = torch.arange(ctx.round % 3, len(ctx.data.y), 3)
        index = index if ctx.data.held_out is None else index[~ctx.data.held_out[index]]
        return Selection(index, index % 2 == 0)


class HoldsOut(Defense):
    def prepare(self, data, ctx):
        return replace(data, held_out=torch.arange(len(data.y)) < 3)


class FirstSix(Defense):
    def select(self, ctx):
        return Selection(torch.arange(6))


class OwnWay(Defense):
    """Moves the model without a batch."""

    def local_train(self, ctx):
        with torch.no_grad():
            for p in ctx.model.parameters():
                p += 0.01


class Nothing(Defense):
    def local_train(self, ctx):
        pass


class Twice(Defense):
    """Learns everything, and again from the start."""

    def local_train(self, ctx):
        for _ in ctx.epochs():
            pass
        ctx.restart()
        for _ in ctx.epochs():
            pass


class Honest(ActiveAttack):
    def craft(self, round, knowledge):
        return knowledge.own


def usage_of(defense=None, members=(0, 1), **changes):
    federation, results = train_all(tiny_setup(defense, members, **changes))
    return federation.trainer.usage, [r.uploads.participants for r in results]


def test_a_sample_counts_in_every_round_it_was_selected_in_and_flags_are_counted_apart():
    usage, _ = usage_of(Rotates(), rounds=5)  # residues 1, 2, 0, 1, 2 of 12 samples
    used, flagged = usage.of_client(0)
    assert used.tolist() == [1, 2, 2] * 4
    assert flagged.tolist() == [n if i % 2 == 0 else 0 for i, n in enumerate([1, 2, 2] * 4)]
    in_round, flagged_in_round = usage.of_rounds()
    assert in_round.tolist() == [[4, 4, 12, 12]] * 5 and flagged_in_round.tolist() == [[2, 2, 0, 0]] * 5
    used, flagged = usage.of_client(3)
    assert used.tolist() == [5] * 12 and flagged.tolist() == [0] * 12


def test_who_is_absent_uses_nothing():
    usage, present = usage_of(Rotates(), rounds=8, participation=0.5)
    in_round, _ = usage.of_rounds()
    assert [tuple(np.flatnonzero(row)) for row in in_round] == present and len(set(present)) > 1
    for k in (2, 3):
        assert usage.of_client(k)[0].tolist() == [sum(k in there for there in present)] * 12
    mine = [t for t, there in enumerate(present, start=1) if 0 in there]
    assert usage.of_client(0)[0].tolist() == [sum(t % 3 == i % 3 for t in mine) for i in range(12)]


def test_composed_defenses_use_what_all_of_them_select_with_the_flags_of_the_one_that_has_some():
    usage, _ = usage_of(composed([Rotates(), FirstSix()]), rounds=3)
    used, flagged = usage.of_client(1)
    assert used.tolist() == [1] * 6 + [0] * 6 and flagged.tolist() == [1, 0, 1, 0, 1, 0] + [0] * 6
    held, _ = usage_of(composed([HoldsOut(), Rotates()]), rounds=3)
    assert held.of_client(0)[0].tolist() == [0] * 3 + [1] * 9


def test_only_the_batches_that_were_trained_on_count():
    usage, _ = usage_of(rounds=1, local_epochs=1, local_batches=1)
    assert usage.of_rounds()[0].tolist() == [[5, 5, 5, 5]]
    again, _ = usage_of(Twice(), rounds=2)
    assert again.of_client(0)[0].tolist() == [2] * 12  # in two rounds, however often in each


def test_nothing_is_known_of_a_training_that_makes_no_batches_and_a_free_rider_uses_nothing():
    usage, _ = usage_of(OwnWay(), rounds=2)
    assert usage.of_client(0)[0].tolist() == [-1] * 12 and usage.of_client(2)[0].tolist() == [2] * 12
    assert usage.of_rounds()[0].tolist() == [[-1, -1, 12, 12]] * 2
    idle, _ = usage_of(Nothing(), rounds=2)
    assert idle.of_client(0)[0].tolist() == [0] * 12 and idle.of_rounds()[0].tolist() == [[0, 0, 12, 12]] * 2


# -- as an analysis sees it ----------------------------------------------------------------------------------------------------


def run_of(defense, members=(0, 1), **federation):
    job, parts, scene = job_of(setting_of(federation=SETTING | federation), defense=use(defense), members=members)
    job = replace(job, looks={})
    return job, scene, train(job, parts, scene, [], lambda t: None)


SETTING = {"clients": 4, "rounds": 5, "local_epochs": 1, "batch_size": 20, "optimizer": {"lr": 0.1}}
COUNTS = ("used", "flagged", "used_in_round", "flagged_in_round")


def seen(job, scene, trained):
    return finished(job, Run(scene=scene, trained=trained, shadows=None, n_models=1), Analysis())


def test_an_analysis_sees_the_counts_of_the_pool():
    job, scene, trained = run_of(Rotates)
    run = seen(job, scene, trained)
    assert run.used.shape == run.pool.shape and run.used_in_round.shape == (5, 4)
    for k in range(4):
        own = scene.split.own(k)
        place = {sample: i for i, sample in enumerate(own)}
        mine = [place[s] for s in scene.pool[run.pool == k]]
        wanted = [[1, 2, 2][i % 3] if k < 2 else 5 for i in mine]
        assert len(mine) > 10 and run.used[run.pool == k].tolist() == wanted
        hot = [n if k < 2 and i % 2 == 0 else 0 for i, n in zip(mine, wanted, strict=True)]
        assert run.flagged[run.pool == k].tolist() == hot
        assert set(run.used_in_round[:, k]) <= ({len(own) // 3, -(-len(own) // 3)} if k < 2 else {len(own)})
    assert (run.used[run.pool == -1] == 0).all() and (run.pool == -1).any()
    run.used[:] = 7
    assert (seen(job, scene, trained).used != 7).all()  # copies


def test_what_a_defense_holds_out_was_never_used():
    job, scene, trained = run_of(HoldsOut)
    run = seen(job, scene, trained)
    assert (run.pool == -2).any() and (run.used[run.pool == -2] == 0).all() and (run.used[run.pool == 0] == 5).all()


def test_of_malicious_clients_nothing_is_known():
    setup = tiny_setup(Rotates(), insider=tiny_insider(Honest()))
    federation, _ = train_all(setup)

    class Small:
        pool, shards = np.arange(48), [range(12)] * 4

        class split:
            @staticmethod
            def own(k):
                return np.arange(12 * k, 12 * k + 12)

    counts = used_samples(Small, federation.trainer.usage, setup.malicious)
    assert setup.malicious == (3,) and counts.used[36:].tolist() == [-1] * 12 == counts.flagged[36:].tolist()
    assert counts.used_in_round.tolist() == [[4, 4, 12, -1]] * 3
    assert counts.used[:36].min() >= 0


def test_they_are_kept_with_the_training(tmp_path):
    job, scene, trained = run_of(Rotates, participation=0.5)
    job = replace(job, results=str(tmp_path), cells=())
    meta, arrays = pack(trained)
    assert cache.save(job, (meta | {"n_models": 1}, arrays))
    kept = cache.load(job)
    assert kept is not None
    before, after = seen(job, scene, trained), seen(job, scene, unpack(*kept))
    for name in COUNTS:
        np.testing.assert_array_equal(getattr(before, name), getattr(after, name))
        assert getattr(before, name).any()
    with pytest.raises(KeyError, match="used"):
        unpack(kept[0], {n: a for n, a in kept[1].items() if n != "used"})
