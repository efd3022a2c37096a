"""Claims for tests: of a made-up paper, over sections of which nothing is known but AUCs."""

from __future__ import annotations

from contests import world

from fedbench.leaderboard.claims.schema import Paper
from fedbench.leaderboard.statistics.claims import judged
from fedbench.leaderboard.statistics.section import Section


def paper_of(*holds, where=("here",), sections=None, text="It is so."):
    """A paper with one claim, over the section ``iid, pair, server`` of the suite ``demo`` unless it says otherwise."""
    here = {"suite": "demo", "setting": "iid", "coalition": "pair", "view": "server"}
    places = {name: {**here, **change} for name, change in (sections or {"here": {}}).items()}
    claim = {"id": "so", "text": text, "place": "Table 1", "where": list(where), "holds": list(holds)}
    suites = {place["suite"] for place in places.values()}
    return Paper.model_validate(
        {"paper": "Demo", "sections": places, "differs": dict.fromkeys(suites, "size."), "claims": [claim]}
    )


def section_of(aucs, labels, setting="iid", coalition="pair", suite="demo", attacks=None):
    """A section of a world's contest; ``aucs`` [rows, attacks, seeds]; ``attacks``: their names."""
    contest = world(aucs, labels=list(labels), names=attacks)
    targets = {seed: (0,) for seed in range(len(aucs[0][0]))}
    return Section(
        suite=suite, setting=setting, coalition=coalition, view="server", attacks=contest.attacks, found=contest.rows,
        targets=targets, contest=contest,
    )  # fmt: skip


def judge(shown, *holds, **more):
    """The one claim as a board of these sections judges it."""
    (found,) = judged(paper_of(*holds, **more), shown)
    return found
