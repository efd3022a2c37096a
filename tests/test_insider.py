"""Adversaries inside the federation and servers under attack: what the engine grants, measures and refuses."""

from __future__ import annotations

import math
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from ruamel.yaml import YAML
from tiny import tiny_clients, tiny_insider, tiny_module, tiny_setup, train_all
from torch.nn.functional import cross_entropy

from fedbench.core import ActiveAttack, Attack, Defense, Diverged, MemberData, SkipCell, UserError
from fedbench.core.cli.run import build_plan
from fedbench.core.experiment.judge import _by_colluders, _scores_of
from fedbench.core.federation.bench import Bench
from fedbench.core.federation.optimizer import FlatAdam
from fedbench.core.numerics.flat import FlatModel
from fedbench.core.numerics.precision import check_precision, in_precision, matmuls
from fedbench.core.population.audit import (
    MEMBER,
    OFL,
    attack_set,
    free_holdout,
    group_set,
    mask_set,
    own_set,
    refuse_overlap,
)
from fedbench.core.population.partition import partition
from fedbench.core.population.parts import Outsiders
from fedbench.core.population.target import EVERYBODY
from fedbench.core.signals.logits import Loss
from fedbench.core.signals.measure import Recorder
from fedbench.core.signals.observe import observe
from fedbench.plugins.defenses.rules.trimmed_mean import TrimmedMean

CPU = torch.device("cpu")


# -- the clients' optimiser ------------------------------------------------------------------------------------------


@given(st.integers(1, 6), st.sampled_from([(0.9, 0.999), (0.5, 0.9)]), st.sampled_from([0.0, 0.01]), st.integers(0, 5))
@settings(max_examples=15, deadline=None)
def test_adam_is_torchs_adam(steps, betas, decay, seed):
    ours, theirs = FlatModel(tiny_module(), CPU), tiny_module()
    mine = FlatAdam(ours, betas=betas, weight_decay=decay)
    reference = torch.optim.Adam(theirs.parameters(), lr=0.05, betas=betas, weight_decay=decay)
    g = torch.Generator().manual_seed(seed)
    for _ in range(steps):
        x, y = torch.randn(5, 4, generator=g), torch.randint(0, 3, (5,), generator=g)
        ours.grad.zero_()
        cross_entropy(ours.module(x), y).backward()
        mine.step(0.05)
        reference.zero_grad()
        cross_entropy(theirs(x), y).backward()
        reference.step()
    torch.testing.assert_close(ours.params, torch.nn.utils.parameters_to_vector(theirs.parameters()), rtol=1e-4, atol=1e-5)


def test_a_client_keeps_its_moments_only_where_the_recipe_says_so():
    flat = FlatModel(tiny_module(), CPU)
    begun = flat.params.clone()

    def update(optimizer, client, gradient):
        flat.params.copy_(begun)
        optimizer.reset(client)
        flat.grad.fill_(gradient)
        optimizer.step(0.1)
        return flat.params - begun

    keep, fresh = FlatAdam(flat, keep=True), FlatAdam(flat)
    first = update(keep, 0, 1.0)
    assert torch.equal(update(keep, 1, 1.0), first)  # another client: a state of its own
    assert not torch.allclose(update(keep, 0, -1.0), -first)  # the first client remembers
    update(fresh, 0, 1.0)
    torch.testing.assert_close(update(fresh, 0, -1.0), -first)


@pytest.mark.parametrize("name", ["sgd", "adam"])
def test_first_steps_are_what_the_optimiser_makes_of_each_gradient(name):
    setup = tiny_setup(name=name, momentum=0.0 if name == "adam" else 0.9)
    start = setup.initial[0]
    bench = Bench(setup, start, setup.flat.buffers.clone(), 1)
    x, y = torch.randn(4, 4, generator=torch.Generator().manual_seed(0)), torch.tensor([0, 1, 2, 0])
    rows = bench.sample_steps(x, y)
    for i in range(4):
        torch.testing.assert_close(rows[i], bench.step(x[i : i + 1], y[i : i + 1]), rtol=1e-3, atol=1e-6)


def test_local_batches_cuts_every_epoch_for_plain_clients_and_members_alike():
    class Acts(Defense):
        def transform(self, batch, ctx):
            return batch

    begun = {k: d for k, d in enumerate(tiny_clients())}
    short = {"local_epochs": 1, "rounds": 1, "momentum": 0.0, "weight_decay": 0.0}
    _, whole = train_all(tiny_setup(members=(), local_batches=3, **short))  # 12 samples in batches of 5: all of them
    _, every = train_all(tiny_setup(members=(), **short))
    assert torch.equal(whole[0].models, every[0].models)
    _, one = train_all(tiny_setup(Acts(), members=(0, 1), local_batches=1, **short))
    setup = tiny_setup(**short)
    from fedbench.core.numerics.rng import key_for

    for k in (0, 3):
        g = torch.Generator().manual_seed(key_for(0, "shuffle", 1, k) >> 1)
        pick = torch.randperm(12, generator=g)[:5]
        step = Bench(setup, setup.initial[0], setup.flat.buffers.clone(), 1).step(begun[k].x[pick], begun[k].y[pick])
        torch.testing.assert_close(one[0].uploads.updates[k], step, rtol=1e-4, atol=1e-6)


def test_a_bench_trains_as_a_client_does_and_leaves_nothing_behind():
    setup = tiny_setup(local_epochs=1, batch_size=100)
    start = setup.initial[0].clone()
    bench = Bench(setup, start, setup.flat.buffers.clone(), 1)
    data = setup.clients[2]
    _, results = train_all(tiny_setup(local_epochs=1, batch_size=100, rounds=1))
    torch.testing.assert_close(bench.train(data.x, data.y), results[0].uploads.updates[2], rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(bench.train(data.x, data.y), bench.step(data.x, data.y))
    assert torch.equal(bench.logits(data.x), bench.logits(data.x))


def test_samples_steps_beyond_memory_are_refused():
    setup = tiny_setup()
    bench = Bench(setup, torch.empty(20_000_000, device="meta"), setup.flat.buffers, 1)
    with pytest.raises(UserError, match=r"takes 7 GiB: lower adversary\.mask_set"):
        bench.sample_steps(torch.zeros(100, 4), torch.zeros(100).long())


# -- rows that are not finite ------------------------------------------------------------------------------------------


class Poison(ActiveAttack):
    """Sends NaN in round 2."""

    knowledge = "own"

    def craft(self, round, knowledge):
        return knowledge.own * (math.nan if round == 2 else 1.0)


def test_a_malicious_row_that_is_not_finite_is_rejected_and_the_federation_goes_on():
    class Assumes(Defense):
        seen: list

        def aggregate(self, updates, weights, ctx):
            self.seen.append((ctx.round, ctx.participants, ctx.assumed_malicious))
            return weights @ updates

    rule = Assumes()
    rule.seen = []
    setup = tiny_setup(rule, members=(), insider=tiny_insider(Poison(), malicious=2), expected_malicious=2)
    federation, results = train_all(setup)
    assert [r.rejected for r in results] == [(), (2, 3), ()]
    assert results[1].uploads.participants == (0, 1) and len(results[1].uploads.updates) == 2
    assert rule.seen == [(1, (0, 1, 2, 3), 2), (2, (0, 1), 0), (3, (0, 1, 2, 3), 2)]
    assert bool(torch.isfinite(federation.models).all())
    torch.testing.assert_close(results[1].steps[0], results[1].uploads.updates.mean(0))


def test_a_rule_with_a_number_of_its_own_outlives_rejected_rows():
    rule = TrimmedMean(b=1)
    setup = tiny_setup(rule, members=(), insider=tiny_insider(Poison(), malicious=2), expected_malicious=2)
    assert [r.rejected for r in train_all(setup)[1]] == [(), (2, 3), ()]


def test_what_an_adversary_writes_to_is_its_own_and_its_precision_too():
    class Writes(ActiveAttack):
        knowledge = "own"

        def craft(self, round, knowledge):
            rows = knowledge.own.double()
            knowledge.start.zero_(), knowledge.own.zero_()
            return rows

    plain = train_all(tiny_setup(members=()))[0].models
    assert torch.equal(train_all(tiny_setup(members=(), insider=tiny_insider(Writes())))[0].models, plain)


def test_an_honest_row_that_is_not_finite_still_ends_the_run():
    class Breaks(Defense):
        def protect(self, update, ctx):
            return update * math.inf

    with pytest.raises(Diverged, match=r"Breaks\.protect made the upload of client 0 not finite"):
        train_all(tiny_setup(Breaks(), members=(0,), insider=tiny_insider(Poison())))


def test_a_round_whose_only_rows_are_rejected_keeps_the_model():
    class Always(ActiveAttack):
        def craft(self, round, knowledge):
            return torch.full_like(knowledge.own, math.inf)

    setup = tiny_setup(members=(), clients=tiny_clients(2), insider=tiny_insider(Always(), malicious=1), participation=0.5)
    _, results = train_all(setup)
    alone = [r for r in results if r.rejected]
    for r in alone:
        assert torch.equal(r.steps, torch.zeros_like(r.steps)) and r.uploads.participants == ()
    assert alone, "no round drew the malicious client alone: choose another seed"


# -- delays ------------------------------------------------------------------------------------------------------------


def test_delayed_clients_train_on_older_models_within_the_bound():
    setup = tiny_setup(members=(), rounds=8, max_delay=2, local_epochs=1)
    models, seen = [setup.initial[0].clone()], set()
    from fedbench.core.federation.loop import Training

    for result in Training(setup).rounds():
        u = result.uploads
        assert torch.equal(u.starts[0], models[-1])
        for r in range(len(u.participants)):
            start = u.starts[u.start_of[r]]
            ages = [age for age in range(len(models)) if torch.equal(start, models[-1 - age])]
            assert ages and min(ages) <= min(2, u.round - 1)
            seen.add(min(ages))
        torch.testing.assert_close(result.models[0], models[-1] + u.updates.mean(0))
        models.append(result.models[0].clone())
    assert seen == {0, 1, 2}


def test_without_delay_nothing_changes():
    _, one = train_all(tiny_setup(members=()))
    _, two = train_all(tiny_setup(members=(), max_delay=0))
    assert torch.equal(one[-1].models, two[-1].models) and one[0].uploads.start_of == [0, 0, 0, 0]


def test_signals_are_measured_at_the_model_each_client_really_had():
    setup = tiny_setup(members=(0, 1), rounds=4, max_delay=3, local_epochs=1)
    x = torch.randn(7, 4, generator=torch.Generator().manual_seed(1))
    y = torch.arange(7) % 3
    from fedbench.core.federation.loop import Training

    federation = Training(setup)
    recorder = Recorder(setup.flat, x, y, {"loss": Loss()}, True, 4, (0, 1), {"server", "coalition"}, [12] * 4, one_start=False)
    checked = 0
    for result in federation.rounds():
        recorder.record(result)
        u = result.uploads
        ends = torch.stack([u.starts[u.start_of[r]] + u.updates[r] for r in range(4)])
        for row, params in enumerate([*ends, ends[:2].mean(0)]):
            setup.flat.params.copy_(params)
            with torch.no_grad():
                expected = cross_entropy(setup.flat.module(x), y, reduction="none")
            torch.testing.assert_close(torch.from_numpy(recorder.arrays()["loss"][-1, row]), expected, rtol=1e-4, atol=1e-5)
        checked += len(set(u.start_of[:2])) > 1
    assert checked, "the coalition never trained on different models: choose another seed"
    assert recorder.arrays()["grad-sq"].shape == (4, 5, 7)


# -- the server's own samples ------------------------------------------------------------------------------------------


def test_the_server_gets_its_root_set_the_layout_and_logits():
    class Looks(Defense):
        root_samples = 5

        def aggregate(self, updates, weights, ctx):
            assert ctx.root is not None and len(ctx.root.y) == 5
            weight, bias = ctx.layers[-2:]
            assert (weight.name, weight.shape, bias.shape) == ("2.weight", (3, 6), (3,)) and bias.stop == updates.shape[1]
            module = tiny_module()
            torch.nn.utils.vector_to_parameters(ctx.params, module.parameters())
            torch.testing.assert_close(ctx.logits(ctx.params, ctx.root.x), module(ctx.root.x).detach())
            assert torch.equal(bias.of(updates), updates[:, -3:])
            return weights @ updates

    root = MemberData(torch.randn(5, 4, generator=torch.Generator().manual_seed(2)), torch.arange(5) % 3)
    train_all(tiny_setup(Looks(), members=(), rounds=1, root=root))


def shards_of(clients=4, n=40):
    return partition(np.arange(n) % 3, clients, seed=0)


def of_holdout(n: int) -> Outsiders:
    """All of a hold-out of ``n`` samples, behind 40 training samples."""
    return Outsiders(ids=40 + np.arange(n))


def test_the_attack_set_asks_about_honest_clients_and_the_hold_out():
    shards = shards_of()
    audit = attack_set(shards, of_holdout(20), malicious=1, members=9, nonmembers=6, seed=3)
    members, outside = audit.ids[audit.kind == MEMBER], audit.ids[audit.kind == OFL]
    assert audit.target == EVERYBODY and len(members) == 9 and len(outside) == 6 and len(set(audit.ids)) == 15
    assert np.isin(members, np.concatenate(shards[:3])).all() and (outside >= 40).all()
    for i, k in zip(audit.ids[audit.kind == MEMBER], audit.owner[audit.kind == MEMBER], strict=True):
        assert i in shards[k]
    same, other = (attack_set(shards, of_holdout(20), 1, 9, 6, seed) for seed in (3, 4))
    assert audit.digest() == same.digest() != other.digest()
    with pytest.raises(UserError, match=r"audit\.members = 31, but all honest clients together has 30"):
        attack_set(shards, of_holdout(20), 1, 31, 6, 0)
    with pytest.raises(UserError, match=r"audit\.nonmembers = 21, but the hold-out has 20"):
        attack_set(shards, of_holdout(20), 1, 3, 21, 0)


def test_the_mask_set_is_the_adversarys_own_and_no_larger_than_that():
    shards = shards_of()
    mask = mask_set(shards, 2, 15, seed=0)
    assert len(set(mask)) == 15 and np.isin(mask, np.concatenate(shards[2:])).all()
    with pytest.raises(UserError, match=r"adversary\.mask_set = 21, but its clients \(2\) hold 20"):
        mask_set(shards, 2, 21, seed=0)


def test_the_root_set_is_disjoint_from_training_and_audit_and_an_overlap_is_refused():
    shards = shards_of()
    audits = [attack_set(shards, of_holdout(20), 1, 9, 12, seed=3)]
    free = free_holdout(40, 20, audits)
    root = own_set(free, 8, "the rule's root set", seed=0)
    assert (root >= 40).all() and not np.isin(root, audits[0].ids).any() and len(set(root)) == 8
    refuse_overlap(root, 40, audits)
    with pytest.raises(UserError, match="the rule's root set wants 9 samples, but only 8 of the hold-out"):
        own_set(free, 9, "the rule's root set", seed=0)
    with pytest.raises(UserError, match="overlaps the audit in 1 samples"):
        refuse_overlap(np.append(root, audits[0].ids[audits[0].kind == OFL][0]), 40, audits)
    with pytest.raises(UserError, match="overlaps the clients' data"):
        refuse_overlap(np.append(root, 5), 40, [replace(audits[0], ids=np.array([50]))])


def test_an_attack_that_follows_one_client_skips_the_question_about_all():
    arrays = {"loss": np.zeros((1, 3, 5), np.float32)}
    with pytest.raises(SkipCell, match="many clients together"):
        observe("server", None, [0, 1, -1], np.array([1]), arrays, np.arange(5))
    assert observe("client", None, [0, 1, -1], np.array([1]), arrays, np.arange(5))["loss"].shape == (1, 1, 5)


def test_who_is_asked_about_does_not_collude():
    class Colludes(Attack):
        colluders = 1

    shards = shards_of()
    job = SimpleNamespace(clients=4, averaged=())
    together = attack_set(shards, of_holdout(20), malicious=1, members=29, nonmembers=6, seed=3)
    assert list(_by_colluders(job, Colludes(), [together])) == [(3,)]
    everyone = attack_set(shards, of_holdout(20), malicious=0, members=39, nonmembers=6, seed=3)
    with pytest.raises(SkipCell, match="1 colluders wanted, 0 clients there whose samples are not asked about"):
        _by_colluders(job, Colludes(), [everyone])


def test_shadow_models_do_not_judge_redrawn_candidates():
    class ShadowModels(Attack):
        needs_shadow_models = True

    scene = SimpleNamespace(aligned=False)
    with pytest.raises(SkipCell, match="align_nonmembers: false redraws"):
        _scores_of(None, ShadowModels(), None, scene, None, None)


def test_a_group_of_malicious_clients_alone_cannot_be_asked_about():
    with pytest.raises(UserError, match="group 'b': no client is left to ask about"):
        group_set(shards_of(), of_holdout(20), 1, "b", np.zeros(0, np.int64), 3, 3, 0)


# -- what the setting may ask ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"audit": {"targets": [3], "nonmembers": 40}}, r"audit\.targets names client 3, which is malicious"),
        ({"coalitions": [{"name": "last", "clients": [3]}]}, "the coalition 'last' names client 3, which is malicious"),
        ({"clients": 1}, "leaves nobody to attack"),
    ],
)
def test_the_default_adversary_is_checked_as_a_named_one_is(tmp_path, change, message):
    path = insider_suite(tmp_path, ["gradient-ascent"], [{"name": "a", **change}])
    with pytest.raises(UserError, match=message) as caught:
        build_plan(path, (), tmp_path / "results", "cpu")
    assert len(caught.value.messages) == 1


def test_settings_that_differ_in_their_adversary_alone_need_an_attack_that_notices(tmp_path):
    sides = [{"name": k, "adversary": {"clients": 1, "knowledge": k, "mask_set": 5}} for k in ("own", "honest")]
    with pytest.raises(UserError, match=r"'own' and 'honest' differ in their adversary alone.*under passive"):
        build_plan(insider_suite(tmp_path, ["passive", "agrevader"], sides), (), tmp_path / "results", "cpu")
    sides[1]["attacks"] = ["agrevader"]
    plan = build_plan(insider_suite(tmp_path, ["passive", "agrevader"], sides), (), tmp_path / "results", "cpu")
    assert len({job.run_key for job in plan.jobs}) == len(plan.jobs) == 3


def insider_suite(folder, attacks, settings):
    """A suite of four clients on digits; ``clients`` of a setting is its federation's."""
    base = {"dataset": "digits", "model": "mlp", "audit": {"nonmembers": 40}, "coalitions": ["none"]}
    federation = {"rounds": 1, "batch_size": 20, "optimizer": {"lr": 0.1}}
    rows = [{**base, **s, "federation": {**federation, "clients": s.get("clients", 4)}} for s in settings]
    for row in rows:
        row.pop("clients", None)
    spec = {"schema": 1, "name": "insiders", "seeds": [0], "settings": rows, "defenses": ["mixup"], "attacks": attacks}
    spec["floors"] = []
    path = folder / "insiders.yaml"
    YAML().dump(spec, path)
    return path


# -- precision ---------------------------------------------------------------------------------------------------------


def test_bf16_trains_in_bfloat16_and_evaluates_in_float32():
    module = in_precision(tiny_module(), "bf16")
    x = torch.randn(5, 4, generator=torch.Generator().manual_seed(0))
    plain = tiny_module()(x)
    assert torch.equal(module.eval()(x), plain)
    low = module.train()(x)
    assert low.dtype == torch.float32 and not torch.equal(low, plain)
    torch.testing.assert_close(low, plain, rtol=2e-2, atol=2e-2)
    assert torch.equal(low, low.to(torch.bfloat16).float())  # eight bits of mantissa
    _, results = train_all(tiny_setup(module=in_precision(tiny_module(), "bf16")))
    _, full = train_all(tiny_setup())
    assert results[-1].models.dtype == torch.float32 and not torch.equal(results[-1].models, full[-1].models)


def test_tf32_is_on_only_while_clients_train_and_only_where_there_is_such_a_device():
    assert not torch.backends.cuda.matmul.allow_tf32
    with matmuls("tf32"):
        assert torch.backends.cuda.matmul.allow_tf32 and torch.backends.cudnn.allow_tf32
    assert not torch.backends.cuda.matmul.allow_tf32
    with pytest.raises(UserError, match="choose fp32 or bf16"):
        check_precision("tf32", "cpu")
    assert check_precision("tf32", "cuda:0") and check_precision("bf16", "cpu")
