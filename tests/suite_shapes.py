"""Suites that are right or nearly so, for whoever must agree with the loader about them: every form of a field, values at the
ends of their ranges, grids; and the same with one thing changed to something else."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import strategies as st
from mutants import places

JUNK = st.sampled_from((
    None, True, -1, 0, 1, 1.0, 2.5, "", "none", "x y", [], {}, [None], {"name": "none"}, 10**30, float("inf"),
))  # fmt: skip


def mapping(required: dict[str, Any], optional: dict[str, Any]) -> st.SearchStrategy[dict[str, Any]]:
    """A mapping with these fields, and some of the optional ones."""
    return st.fixed_dictionaries(required, optional=optional)


def listed(strategy: st.SearchStrategy[Any], most: int = 3) -> st.SearchStrategy[list[Any]]:
    return st.lists(strategy, min_size=1, max_size=most)


_DEFENSE_PARAMS: dict[str, Any] = {
    "grad-noise": {"sigma": st.sampled_from((0, 0.01, 1))},
    "dp-sgd": {"clip_update": st.sampled_from((1, 0.5, "median")), "flip": st.booleans(), "clip": st.sampled_from((1e-9, 2))},
    "atm": {"kappa": st.sampled_from((None, 0, 2))},
    "none": {},
}
_DATASET_PARAMS: dict[str, Any] = {
    "digits": {"test": st.sampled_from((1, 1795)), "label_noise": st.sampled_from((0, 0.3, 1))},
    "image-folder": {"path": st.just("images"), "size": st.sampled_from((None, 4, 1024)), "channels": st.sampled_from((1, 3))},
}


def use(known: dict[str, Any], grids: bool = False) -> st.SearchStrategy[Any]:
    """A component by name or as a mapping with parameters."""

    def mapped(name: str) -> st.SearchStrategy[Any]:
        own = known[name]
        needed = {n: s for n, s in own.items() if n == "path"}
        params = st.fixed_dictionaries(needed, optional={n: s for n, s in own.items() if n not in needed})
        if not grids:
            return mapping({"name": st.just(name), "params": params}, {})
        lists = {n: st.lists(s, min_size=1, max_size=2, unique_by=str) for n, s in own.items()}
        labelled = {"label": st.text("abc+.-_é", min_size=1, max_size=8)}
        tried = mapping({"name": st.just(name), "grid": st.fixed_dictionaries({}, optional=lists)}, labelled)
        return st.one_of(mapping({"name": st.just(name)}, labelled | {"params": params}), tried)

    def forms(name: str) -> st.SearchStrategy[Any]:
        return mapped(name) if "path" in known[name] else st.one_of(st.just(name), mapped(name))

    return st.sampled_from(sorted(known)).flatmap(forms)


def defenses() -> st.SearchStrategy[Any]:
    alone = use(_DEFENSE_PARAMS, grids=True)
    followed = st.tuples(alone, use(_DEFENSE_PARAMS)).map(list)
    return st.one_of(alone, alone, followed, alone.map(lambda a: [a]))


_OPTIMIZER = mapping({}, {
    "lr": st.sampled_from((0.1, 1, 1e6)), "momentum": st.sampled_from((0, 0.9)), "weight_decay": st.just(5e-4),
    "schedule": st.sampled_from(("constant", "cosine", {"name": "exponential", "factor": 0.9})),
})  # fmt: skip
_SIZES = {"clients": st.integers(4, 6), "rounds": st.integers(1, 20), "batch_size": st.just(10), "optimizer": _OPTIMIZER}
_MORE = {"participation": st.sampled_from((0.5, 1)), "precision": st.sampled_from(("fp32", "tf32")), "max_delay": st.just(0)}
FEDERATION = st.one_of(
    mapping(_SIZES | {"optimizer": _OPTIMIZER.map(lambda given: {"lr": 0.1, **given})}, _MORE),
    mapping({"recipe": st.sampled_from(("fedmia", "cofedmid"))}, _SIZES | _MORE),
)
COALITION = st.sampled_from((
    "none", "pair", "uniform", {"name": "two", "clients": [0, 1]}, {"name": "a", "fraction": 0.5},
    {"name": "pairs", "groups": [[0, 1], [2, 3]]},
))  # fmt: skip
AUDIT = mapping({}, {
    "every": st.just(1), "targets": st.sampled_from(("coalition", [0, 1])), "nonmembers": st.just(5),
    "shadow": st.sampled_from((None, {"models": 2}, {})), "align_nonmembers": st.booleans(), "outside": st.just(7),
})  # fmt: skip
ADVERSARY = mapping({}, {"clients": st.sampled_from((1, 0.3)), "knowledge": st.sampled_from(("own", "rule"))})
PARTITION = st.sampled_from(("iid", {"name": "dirichlet", "beta": float("inf")}, {"name": "group-bias", "bias": 0}))
SETTING = mapping(
    {"name": st.just("a"), "dataset": use(_DATASET_PARAMS), "federation": FEDERATION},
    {"audit": AUDIT, "adversary": ADVERSARY, "partition": PARTITION, "coalitions": listed(COALITION, 1),
     "model": st.sampled_from(("mlp", {"name": "mlp", "params": {"hidden": [8]}}, None)), "thresholds": st.just([0.5, 1])},
)  # fmt: skip
SUITES = mapping(
    {"schema": st.just(1), "name": st.just("s"), "seeds": st.just([0, 2**63 - 1]), "settings": listed(SETTING, 1),
     "coalitions": st.just(["pair"]), "defenses": listed(defenses(), 1), "attacks": st.just(["loss-series"])},
    {"floors": st.sampled_from(([], ["placebo"], None)), "analyses": st.sampled_from((None, ["sweep"], [])),
     "limits": st.just({"run_seconds": 5}), "title": st.just("t"), "signals": st.just(["loss"]),
     "published": st.just([{"source": "fedmia", "setting": "a", "where": {"table": "1"}}])},
)  # fmt: skip


@st.composite
def nearly(draw: st.DrawFn) -> dict[str, Any]:
    """One of ``SUITES``; of two, one has something else in one place, or one field less."""
    suite = json.loads(json.dumps(draw(SUITES)))
    if draw(st.booleans()):
        *inside, key = draw(st.sampled_from(list(places(suite))))
        parent = suite
        for step in inside:
            parent = parent[step]
        if draw(st.booleans()):
            parent[key] = draw(JUNK)
        else:
            del parent[key]
    return suite
