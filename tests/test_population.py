"""Partitions of the training samples, the parts of a client's samples, and audit sets."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedbench.core import EXCLUDED, IFL, MEMBER, OFL, Data, UserError
from fedbench.core.population.audit import (
    EVERYBODY,
    Target,
    audit_set,
    client,
    free_holdout,
    group,
    mask_set,
    opaque_names,
    own_set,
    pool_of,
    pooled_set,
)
from fedbench.core.population.labels import data_of_labels, labels_of, origin_of_nonmembers
from fedbench.core.population.partition import Outsiders, cut, cut_all, partition, whole
from fedbench.core.run.checks import repeated_share

N = 400
LABELS = np.random.default_rng(0).integers(0, 5, N)
SHARES = st.sampled_from(
    [(0.1, 0.2), (0.0, 0.2), (0.1, 0.0), (0.25, 0.25), (0.3, 0.6), (1 / 3, 1 / 3)]
)
COUNTS = st.lists(st.integers(0, 40), min_size=1, max_size=12)
INF = float("inf")


def attack_set(shards: list[np.ndarray], *sizes: Any, **more: Any) -> Any:
    clients = np.arange(len(shards) - 1)  # the last one is malicious
    return pooled_set(EVERYBODY, EVERYBODY.words(), shards, clients, *sizes, **more)


def of_holdout(n: int) -> Outsiders:
    """All of a hold-out of ``n`` samples, behind the training samples."""
    return Outsiders(ids=N + np.arange(n))


def labels(counts: list[int], seed: int) -> np.ndarray:
    """So many samples of each class, in random order."""
    return np.random.default_rng(seed).permutation(np.repeat(np.arange(len(counts)), counts))


# -- partitions ------------------------------------------------------------------------------------

RULES: list[dict[str, Any]] = [
    {"name": "iid"},
    {"name": "dirichlet", "beta": 0.5},
    {"name": "dirichlet", "beta": INF},
    {"name": "dirichlet-sizes", "beta": 0.5},
    {"name": "group-bias", "bias": 0.7},
]


@settings(max_examples=30)
@given(clients=st.integers(1, 30), seed=st.integers(0, 9), rule=st.sampled_from(RULES))
def test_a_partition_is_disjoint_complete_sorted_and_keyed(clients, seed, rule):
    shards, again, other = (
        partition(LABELS, clients, s, **rule, min_samples=0) for s in (seed, seed, seed + 1)
    )
    assert len(shards) == clients and np.array_equal(np.sort(np.concatenate(shards)), np.arange(N))
    assert all(np.array_equal(shard, np.sort(shard)) for shard in shards)
    assert all(np.array_equal(a, b) for a, b in zip(shards, again, strict=True))
    assert all(np.array_equal(a, b) for a, b in zip(shards, other, strict=True)) == (clients == 1)


def test_each_rule_has_the_skew_that_its_parameter_says():
    def skew(shards):
        return np.std([np.bincount(LABELS[s], minlength=5) / len(s) for s in shards], axis=0).mean()

    assert {len(s) for s in partition(LABELS, 8, 0, min_samples=50)} == {50}
    skewed = [skew(partition(LABELS, 8, 0, "dirichlet", b, 0)) for b in (0.3, 3.0, INF)]
    assert skewed[0] > skewed[1] > skewed[2] and skewed[2] < 0.05
    assert all(
        abs(np.bincount(LABELS[s])[c] - (c == LABELS).sum() / 8) <= 1
        for s in partition(LABELS, 8, 0, "dirichlet", INF)
        for c in range(5)
    )
    y = np.random.default_rng(0).integers(0, 2, 20_000)
    shards = partition(y, 5, 0, "dirichlet-sizes", 0.5, 1)
    sizes = np.array([len(s) for s in shards])
    assert sizes.max() > 3 * sizes.min()
    # the labels stay IID
    assert all(abs(y[s].mean() - y.mean()) < 4 * 0.5 / np.sqrt(len(s)) for s in shards)
    assert [len(s) for s in partition(y, 5, 0, "dirichlet-sizes", INF)] == [4000] * 5


@pytest.mark.parametrize(
    ("clients", "classes", "bias"), [(10, 10, 0.1), (10, 30, 0.5), (50, 10, 0.9), (7, 5, 1.0)]
)
def test_group_bias_sends_a_label_to_its_own_group_with_that_probability(clients, classes, bias):
    n, groups = 20_000, min(clients, classes)
    nth = np.random.default_rng(0).permutation(np.arange(n) % classes)
    # groups count the labels that occur
    shards = partition(7 * nth + 3, clients, 4, "group-bias", bias=bias)
    where = np.empty(n, int)
    for k, shard in enumerate(shards):
        where[shard] = k % groups
    wanted = np.r_[bias, np.full(groups - 1, (1 - bias) / (groups - 1))]
    found = np.bincount((where - nth % groups) % groups, minlength=groups)
    assert (np.abs(found - n * wanted) <= 5 * np.sqrt(n * wanted * (1 - wanted))).all()  # binomial
    for g in range(groups):  # a group's clients have equal shares
        sizes = [len(shards[k]) for k in range(g, clients, groups)]
        assert max(sizes) - min(sizes) <= 1


# -- parts of a client's samples -------------------------------------------------------------------


@settings(max_examples=30)
@given(counts=COUNTS, shares=SHARES, seed=st.integers(0, 5), who=st.integers(0, 3))
def test_parts_are_disjoint_complete_and_hold_their_share_of_every_class(counts, shares, seed, who):
    y = labels(counts, seed)
    parts = cut(y, *shares, seed, who)
    assert np.array_equal(np.sort(np.concatenate(parts)), np.arange(len(y)))
    assert all(np.array_equal(part, np.unique(part)) for part in parts)
    for c, n in enumerate(counts):
        of_class = [int((y[part] == c).sum()) for part in parts]
        if n < 2:
            assert of_class == [n, 0, 0]
            continue
        for found, share in zip(of_class, (1 - sum(shares), *shares), strict=True):
            assert abs(found - n * share) < 1 + 1e-8, (c, n, of_class)


@settings(max_examples=30)
@given(counts=COUNTS, share=st.sampled_from([0.1, 0.2, 0.5]), seed=st.integers(0, 5))
def test_a_part_has_its_share_of_the_client_however_small_the_classes_are(counts, share, seed):
    y = labels(counts, seed)
    many = sum(n for n in counts if n > 1)
    assert abs(len(cut(y, 0.0, share, seed, 0)[2]) - many * share) < 1 + 1e-8
    assert abs(len(cut(y, share, 0.0, seed, 0)[1]) - many * share) < 1 + 1e-8


def test_small_classes_are_rounded_up_in_turn_and_not_the_first_ones_always():
    y = np.repeat(np.arange(100), 4)  # .4 of a sample each: 40 of them give one
    taken = [set(y[cut(y, 0.1, 0.0, 0, k)[1]]) for k in range(4)]
    assert {len(t) for t in taken} == {40} and len(set.union(*taken)) > 80


@settings(max_examples=20)
@given(seed=st.integers(0, 5), shares=SHARES)
def test_a_split_of_all_clients(seed, shares):
    """Parts are disjoint, together everything, keyed by seed and client, and each sample's client
    is known.
    """
    how = {"validation": shares[0], "test": shares[1]}
    shards = partition(LABELS, 4, seed, "dirichlet", 1.0, 20)
    split, again, other = (cut_all(LABELS, shards, 30, s, **how) for s in (seed, seed, seed + 1))
    assert split.digest() == again.digest() != other.digest()
    assert np.array_equal(
        np.sort(np.concatenate([*split.train, *split.validation, *split.test])), np.arange(N)
    )
    for k, shard in enumerate(shards):
        assert np.array_equal(np.sort(np.concatenate([split.own(k), split.test[k]])), shard)
        assert (split.home()[shard] == k).all() and (split.trained_by()[split.train[k]] == k).all()
        assert (
            split.trained_by()[np.concatenate([split.validation[k], split.test[k]])] == -1
        ).all()
        assert (split.tested_by()[split.test[k]] == k).all() and (
            split.tested_by()[split.own(k)] == -1
        ).all()
    assert (
        np.array_equal(split.home()[N:], np.arange(30) % 4) and (split.trained_by()[N:] == -1).all()
    )
    assert split.has_test == (shares[1] > 0)
    exchanged = cut_all(LABELS, [*shards[:2], shards[3], shards[2]], 30, seed, **how)
    assert all(np.array_equal(split.train[k], exchanged.train[k]) for k in (0, 1))
    one, two = (cut(np.repeat([0, 1], 30), 0.2, 0.2, seed, k)[0] for k in (0, 1))
    assert not np.array_equal(one, two)


def test_without_shares_all_is_trained_on_and_the_released_validation_part_is_the_test_part():
    shards = partition(LABELS, 4, 0)
    split, released = (
        cut_all(LABELS, shards, 30, 0),
        cut_all(LABELS, shards, 30, 0, test=0.2, on_test=True),
    )
    assert (
        split.digest() == whole(shards, 30).digest()
        and not split.has_test
        and not len(split.validated())
    )
    assert all(np.array_equal(split.own(k), shards[k]) for k in range(4))
    assert all(
        np.array_equal(a, b) for a, b in zip(released.validation, released.test, strict=True)
    )
    assert not len(released.validated()) and all(len(released.own(k)) == 100 for k in range(4))
    validated = cut_all(LABELS, shards, 30, 0, validation=0.2)
    assert (
        len({s.digest() for s in (split, released, validated)}) == 3
        and len(validated.validated()) == 80
    )


# -- audit sets ------------------------------------------------------------------------------------


def listed(audit, where):
    """(id, kind, owner) of the candidates there, in their order."""
    return list(
        zip(
            audit.ids[where].tolist(),
            audit.kind[where].tolist(),
            audit.owner[where].tolist(),
            strict=True,
        )
    )


@settings(max_examples=60)
@given(
    target=st.integers(0, 9),
    nonmembers=st.integers(10, 3000),
    outside=st.integers(1, 150),
    seed=st.integers(0, 5),
    absent=st.booleans(),
    holdout=st.sampled_from([61, 130]),
)
def test_an_audit_set_is_fair_and_more_outsiders_or_members_from_the_holdout_leave_the_rest(
    target, nonmembers, outside, seed, absent, holdout
):
    """In the null (``absent``) the members are outsiders, too, and what other clients trained on is
    asked about by no metric.
    """
    # of 40 samples: half of the smaller hold-out stands in for them
    shards = partition(LABELS, 10, seed)
    plain, wide, again, other = (
        audit_set(shards, of_holdout(holdout), target, nonmembers, s, outside=n, absent=absent)
        for s, n in ((seed, None), (seed, outside), (seed, outside), (seed + 1, outside))
    )
    assert wide.digest() == again.digest() != other.digest() and wide.target == client(target)
    assert len(np.unique(wide.ids)) == len(wide.ids)
    member, outsiders = wide.kind == MEMBER, wide.kind == OFL
    members = min(40, holdout // 2) if absent else 40
    share, strangers = (
        min(nonmembers // 10, holdout - members * absent),
        min(outside, holdout - members * absent),
    )
    assert (member.sum(), outsiders.sum(), (plain.kind == OFL).sum()) == (members, strangers, share)
    from_holdout = outsiders | (member & absent)
    assert (wide.ids[from_holdout] >= N).all() and (wide.owner[from_holdout] == -1).all()
    if not absent:
        assert (
            np.array_equal(np.sort(wide.ids[member]), shards[target])
            and (wide.owner[member] == target).all()
        )
    for k in range(10):
        # a colluder keeps its samples in the pool
        of_other = (wide.kind == (EXCLUDED if absent else IFL)) & (wide.owner == k)
        assert (
            of_other.sum() == (0 if k == target else min(share, 40))
            and np.isin(wide.ids[of_other], shards[k]).all()
        )
    # no inside non-members are counted in the null, and so there is no mix to keep apart
    assert plain.in_mix().all() and (~wide.in_mix()).sum() == wide.extra.sum() == (
        0 if absent else max(0, strangers - share)
    )
    assert (wide.kind[wide.extra] == OFL).all()
    if strangers >= share:
        assert listed(wide, wide.kind != OFL) == listed(plain, plain.kind != OFL)
        if not absent:
            assert listed(wide, wide.in_mix()) == listed(plain, plain.in_mix())


def test_the_order_of_candidates_and_their_names_tell_nothing():
    audit = audit_set(partition(LABELS, 10, 0), of_holdout(130), 3, 500, 0, outside=120)
    names, n = opaque_names(N + 130, 0), len(audit.ids)
    assert np.array_equal(np.sort(names), np.arange(N + 130)) and not np.array_equal(
        names, opaque_names(N + 130, 1)
    )
    assert abs(names[:N].mean() - names.mean()) < 4 * 530 / np.sqrt(12 * 130)
    for chosen, count in ((audit.kind == MEMBER, 40), (audit.extra, 70)):
        places = np.flatnonzero(chosen)
        assert len(places) == count and abs(places.mean() - (n - 1) / 2) < 4 * n / np.sqrt(
            12 * count
        )
        assert not np.array_equal(audit.ids[chosen], np.sort(audit.ids[chosen]))


@pytest.mark.parametrize("absent", [False, True], ids=["members", "null"])
def test_an_attack_set_asks_about_honest_clients_and_a_group_set_about_its_own(absent):
    shards = partition(LABELS, 4, 0)
    one, same, other = (
        attack_set(shards, of_holdout(60), 20, 40, seed, absent=absent) for seed in (3, 3, 4)
    )
    assert one.target == EVERYBODY and one.digest() == same.digest() != other.digest()
    like_theirs = whole(shards, 60).outsiders(np.array([1, 3]), "group 'b'")
    some = pooled_set(group(1), "", shards, np.array([1, 3]), like_theirs, 10, 20, 0, absent=absent)
    assert some.target == group(1) and np.isin((some.ids[some.kind == OFL] - N) % 4, [1, 3]).all()
    for audit, clients, members in ((one, (0, 1, 2), 20), (some, (1, 3), 10)):
        inside = audit.kind == MEMBER
        assert (
            inside.sum() == members
            and (audit.kind == OFL).sum() == len({*audit.ids}) - members == len(audit.ids) - members
        )
        assert (
            len(audit.ids) == 3 * members
            and (audit.ids[~inside] >= N).all()
            and (audit.owner[~inside] == -1).all()
        )
        assert np.flatnonzero(inside).mean() > members / 2  # shuffled
        if absent:
            assert (audit.ids >= N).all() and (audit.owner == -1).all()
        else:
            assert all(
                i in shards[k] and k in clients
                for i, k in zip(audit.ids[inside], audit.owner[inside], strict=True)
            )


def test_the_samples_of_adversary_and_server_are_disjoint_from_the_audit():
    shards = partition(LABELS, 4, 0)
    audits = [
        attack_set(shards, of_holdout(60), 9, 40, seed=3),
        audit_set(shards, of_holdout(60), 0, 20, 0),
    ]
    pool = pool_of(audits)
    assert np.array_equal(pool, np.unique(pool)) and all(np.isin(a.ids, pool).all() for a in audits)
    mask = mask_set(shards, 2, 15, seed=0)
    assert len(set(mask)) == 15 and np.isin(mask, np.concatenate(shards[2:])).all()
    free = free_holdout(N, 60, audits)
    root = own_set(free, 8, "the rule's root set", seed=0)
    assert (root >= N).all() and not np.isin(root, pool).any() and len(set(root)) == 8
    assert len(free) + np.isin(np.arange(N, N + 60), pool).sum() == 60


def test_a_target_has_one_code():
    targets = [client(0), client(7), EVERYBODY, group(0), group(2)]
    assert [t.code for t in targets] == [0, 7, -3, -10, -12] and [
        Target.of(t.code) for t in targets
    ] == targets
    assert [t.client for t in targets] == [0, 7, None, None, None]
    assert [t.words(("a", "b")) for t in targets] == [
        "client 0",
        "client 7",
        "all honest clients",
        "group 'a'",
        "group 2",
    ]
    for code in (-1, -2, -9):
        with pytest.raises(ValueError, match="the code of no target"):
            Target.of(code)


# -- what cannot be drawn --------------------------------------------------------------------------


def four() -> list[np.ndarray]:
    """Four clients of 100 samples."""
    return partition(LABELS, 4, 0)


def cut_alike(counts: list[int], **shares: float) -> None:
    """Two clients with so many samples of each class, cut."""
    n = sum(counts)
    cut_all(
        np.tile(labels(counts, 0), 2),
        [np.arange(n), n + np.arange(n)],
        10,
        3,
        rule="dirichlet",
        **shares,
    )


def repeating(n: int) -> Data:
    """A hold-out of 100 samples that repeats so many training samples."""
    x, y = np.arange(300, dtype=np.float32)[:, None], np.zeros(300, np.int64)
    x[200 : 200 + n] = x[:n]
    return Data(
        train_x=x[:150],
        train_y=y[:150],
        test_x=x[150:200],
        test_y=y[150:200],
        holdout_x=x[200:],
        holdout_y=y[200:],
        n_classes=2,
    )


TOO_LITTLE = "use a larger share, a larger beta, fewer clients or more data"
REFUSED: dict[str, tuple[Any, str]] = {
    "too few samples": (
        lambda: partition(LABELS, 401, 0),
        "400 training samples for 401 clients: use fewer clients",
    ),
    "fewer than wanted": (
        lambda: partition(LABELS, 8, 3, min_samples=51),
        r"leaves client 0 with 50 samples \(at least 51 wanted; 8 of 8 clients are short, seed "
        r"3\): use fewer clients",
    ),
    "a small beta": (
        lambda: partition(LABELS, 20, 0, "dirichlet", 0.01),
        r"leaves client \d+ with 0 .*use a larger beta",
    ),
    "a large bias": (
        lambda: partition(np.arange(1000) // 990, 10, 0, "group-bias", min_samples=5, bias=1.0),
        "use a smaller bias, fewer cli",
    ),
    "no validation part": (
        lambda: cut_alike([5], validation=0.1),
        r"client 0 has 5 samples of 1 classes: its validation part would be empty "
        r"\(federation.validation: 0.1; 2 of 2 "
        rf"clients, seed 3\): {TOO_LITTLE}",
    ),
    "no training part": (
        lambda: cut_alike([2], test=0.8),
        r"its training part would be empty \(what federation.validation ",
    ),
    "no outsiders": (
        lambda: audit_set(four(), of_holdout(60), 0, 3, 0),
        "no outside non-members: audit.nonmembers = 3 over 4",
    ),
    "no null": (
        lambda: audit_set(four(), of_holdout(1), 1, 1000, 0, absent=True),
        "hold-out of 1 samples leaves none",
    ),
    "members": (
        lambda: attack_set(four(), of_holdout(60), 301, 6, 0),
        "301, but all honest clients together has 300 ",
    ),
    "nonmembers": (
        lambda: attack_set(four(), of_holdout(60), 3, 61, 0),
        "nonmembers = 61, but the hold-out has 60 samples",
    ),
    "nonmembers of a null": (
        lambda: attack_set(four(), of_holdout(60), 40, 30, 0, absent=True),
        "nonmembers = 30, but the hold-out beside the members has 20 samples",
    ),
    "a malicious group": (
        lambda: pooled_set(
            group(1), "group 'b'", four(), np.zeros(0, np.int64), of_holdout(60), 3, 3, 0
        ),
        "group 'b': no client is left",
    ),
    "a mask set": (
        lambda: mask_set(four(), 2, 201, 0),
        r"mask_set = 201, but its clients \(2\) hold 200 samples",
    ),
    "a hold-out of training samples": (
        lambda: repeated_share(repeating(51), "d"),
        "51 of 100 hold-out samples are training",
    ),
    "a root set": (
        lambda: own_set(np.arange(8), 9, "the rule", 0),
        "the rule wants 9 samples, but only 8 of the hold-out",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_drawn_is_refused_with_its_numbers(case):
    draw, message = REFUSED[case]
    with pytest.raises(UserError, match=message):
        draw()


def test_the_largest_that_can_be_drawn_are_drawn():
    assert len(attack_set(four(), of_holdout(60), 300, 60, 0).ids) == 360
    assert (
        len(mask_set(four(), 2, 200, 0)) == 200
        and len(own_set(np.arange(9), 9, "the rule", 0)) == 9
    )
    assert len(partition(LABELS, 400, 0)) == 400
    assert repeated_share(repeating(50), "d") == 0.5


# -- divisions and hold-outs as given --------------------------------------------------------------


def test_a_division_as_given_is_the_data_sets_own():
    owner = np.array([2, 0, 1, 0, 2, 2])
    shards = partition(np.zeros(6), 3, 5, "given", owner=owner)
    assert [shard.tolist() for shard in shards] == [[1, 3], [2], [0, 4, 5]]
    for clients, wrong, words in (
        (3, None, "does not say which client"),
        (2, owner, "samples of client 2"),
        (4, owner, "client 3 without samples"),
    ):
        with pytest.raises(UserError, match=words):
            partition(np.zeros(6), clients, 5, "given", owner=wrong)


def test_outsiders_of_a_client_are_of_its_own_site_where_it_has_some():
    split = replace(whole([np.array([0]), np.array([1]), np.array([2])], 6), n_train=3)
    of_clients = [split.outsiders(np.array([k]), "").ids.tolist() for k in range(3)]
    assert of_clients == [[3, 6], [4, 7], [5, 8]]  # sample i like client i mod 3
    split = replace(split, holdout_client=np.array([0, 0, 2, -1, 2, -1]))
    of_clients = [split.outsiders(np.array([k]), "").ids.tolist() for k in range(3)]
    assert of_clients == [[3, 4], [6, 8], [5, 7]]
    assert split.outsiders(np.arange(3), "").ids.tolist() == [3, 4, 5, 6, 7, 8]
    assert split.outsiders(np.array([0, 2]), "").ids.tolist() == [3, 4, 5, 7]
    assert split.home().tolist() == [0, 1, 2, 0, 0, 2, 0, 2, 2]


def test_clients_of_data_enter_its_digest_and_travel_with_its_labels():
    arrays = {
        f"{split}_{part}": np.zeros(shape, dtype)
        for split in ("train", "test", "holdout")
        for part, shape, dtype in (("x", (4, 2), np.float32), ("y", 4, np.int64))
    }
    plain = Data(**arrays, n_classes=2)
    assert "train_client" not in labels_of(plain)
    assert origin_of_nonmembers(plain, 2) == ""
    clients = {"train_client": np.array([0, 1, 0, 1]), "holdout_client": np.array([1, 1, -1, -1])}
    data = replace(plain, **clients)
    assert len({plain.digest(), data.digest(), replace(data, holdout_client=None).digest()}) == 3
    again = data_of_labels(2, "classification", labels_of(data))
    for name, expected in clients.items():
        assert np.array_equal(getattr(again, name), expected)
    assert origin_of_nonmembers(data, 2) == "of the own site of 1 of 2 clients, common for the rest"
