"""Boards for claims and tuned strengths: rows as leaky and as accurate as told, and claims of a
made-up paper about them.
"""

from __future__ import annotations

import numpy as np
from boards import CLIENTS, MEMBERS, Folder, escape_stem, sections_of
from contests import world
from ruamel.yaml import YAML

from fedbench.leaderboard.statistics.sections import BoardSection
from fedbench.plugins.papers.claim_files import Paper
from fedbench.plugins.papers.verdicts import judged

N_TEST = 2000
YES, NO, SMALL, OPEN, NONE = (
    "supported",
    "contradicted",
    "smaller than claimed",
    "not decided by these intervals",
    "not tested at this scale",
)
HERE, SCALE, OWN = (
    "cannot decide here",
    "not comparable at this scale",
    "the paper contradicts itself",
)
WIGGLE = np.array([-0.01, 0.0, 0.01, -0.005, 0.005])  # of an AUC from seed to seed


def pairs(text):
    """label -> (leak, accuracy), of a text such as ``none 2.0 0.8, mixup 0.3 0.795``."""
    rows = (row.split() for row in text.split(", "))
    return {label: (float(leak), float(accuracy)) for label, leak, accuracy in rows}


class Cells(Folder):
    """``cells``: setting -> label -> (leak, accuracy). ``of_seed``: seed -> label -> another pair;
    ``without``: (label, seed) that have no record; ``tuning``: seeds on which strengths are chosen;
    ``found``: label -> what else its records have.
    """

    def __init__(
        self,
        root,
        cells,
        suite="demo",
        coalition="pair",
        attacks=("loss-series",),
        seeds=range(5),
        tuning=(),
        of_seed=None,
        without=(),
        n_ofl=60,
        found=None,
    ):
        super().__init__(root, {}, attacks, n_ofl)
        self.coalition = coalition
        for setting, rows in cells.items():
            for seed in (*seeds, *tuning):
                for label, pair in {**rows, **(of_seed or {}).get(seed, {})}.items():
                    if (label, seed) in without:
                        continue
                    self.leak[label], self.accuracy = pair
                    described = {
                        "dataset": {"name": "gauss", "params": {}},
                        **({"tuning": True} if seed in tuning else {}),
                    }
                    for attack in attacks:
                        names = (setting, label, attack, str(seed))
                        self.add(
                            label,
                            attack,
                            seed,
                            stem="-".join(map(escape_stem, names)),
                            key="/".join(names),
                            suite=suite,
                            setting=setting,
                            described=described,
                            run_key=f"{setting}/{label}/{seed}",
                            **(found or {}).get(label, {}),
                        )

    def parties(self, defense):
        return ("none", (), CLIENTS) if defense == "none" else (self.coalition, MEMBERS, MEMBERS)

    def _measured(self, defense, attack, seed, targets, ids_from):
        arrays, scored, _ = super()._measured(defense, attack, seed, targets, ids_from)
        correct = np.arange(N_TEST) < round(self.accuracy * N_TEST)
        return {**arrays, "test_correct": correct}, scored, correct


TUNING, REPORTED = (100, 101), (0, 1, 2)
STRENGTHS = pairs(
    "none 2.0 0.8, weak[s=2] 0.9 0.7925, weak[s=3] 0.1 0.7, late[s=2] 0.2 0.6, one 0.4 0.79, "
    "mine[a=1,b=2] 0.0 0.795, mine[a=2,b=2] 1.9 0.81"
)


def tuned_section(root, rows=STRENGTHS, tuning=TUNING, reported=REPORTED, **more):
    """A section of several strengths with its tuning seeds."""
    (section,) = sections_of(Cells(root, {"iid": rows}, seeds=reported, tuning=tuning, **more))
    return section


def section_of(aucs, labels, setting="iid", coalition="pair", suite="demo", attacks=None):
    """A section of a world's contest; ``aucs`` [rows, attacks, seeds]; ``attacks``: their names."""
    return section_around(
        world(aucs, labels=list(labels), names=attacks), setting, coalition, suite
    )


def section_around(contest, setting="iid", coalition="pair", suite="demo"):
    """A section with one target a seed."""
    return BoardSection(
        suite=suite,
        setting=setting,
        coalition=coalition,
        view="server",
        attacks=contest.attacks,
        unordered_rows=contest.rows,
        targets={seed: (0,) for seed, _ in contest.scores.units},
        comparison=contest,
    )


def paper_of(*holds, where=("here",), sections=None, text="It is so.", printed=(), share=1, **more):
    """A paper with one claim, and ``more``; ``holds`` as in a file. Sections are ``iid, pair,
    server`` of ``demo`` unless told otherwise.
    """
    here = {"suite": "demo", "setting": "iid", "coalition": "pair", "view": "server"}
    places = {name: {**here, **change} for name, change in (sections or {"here": {}}).items()}
    read = [YAML(typ="safe").load(text) for text in holds]
    claim = {
        "id": "so",
        "text": text,
        "place": "Table 1",
        "where": list(where),
        "holds": read,
        "printed": list(printed),
    }
    claim["share"] = share
    suites = {place["suite"] for place in places.values()}
    of_all = {
        "paper": "Demo",
        "nonmembers": "outside",
        "sections": places,
        "differs": dict.fromkeys(suites, "size."),
    }
    return Paper.model_validate(of_all | {"claims": [claim]} | more)


def judge(shown, *holds, **more):
    """The one claim as a board of these sections judges it."""
    (found,) = judged(paper_of(*holds, **{"at_scale": ["demo"], **more}), shown)
    return found
