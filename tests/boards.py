"""Small synthetic results folders for tests of boards, and what a board made of them says."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np

from fedbench.core import FinishedRun, Number
from fedbench.core.contract.hooks import CONTRACT_VERSION
from fedbench.core.metrics import score_groups
from fedbench.core.metrics.rounds import decision_report
from fedbench.core.population.audit import EVERYBODY
from fedbench.core.registry.use import ComponentUse
from fedbench.core.store.integrity import keys_of
from fedbench.core.store.reading import load_records, read_run
from fedbench.core.store.record import Costs, Record, RecordedFindings, RoundRow, Utility
from fedbench.core.store.run_file import (
    CellResult,
    array_names,
    digest_of_arrays,
    optional_names,
    write_run,
)
from fedbench.core.store.scores import TargetScores
from fedbench.core.store.stems import stem_of_run
from fedbench.leaderboard.document import Source, document
from fedbench.leaderboard.markdown import render
from fedbench.leaderboard.statistics.grouping import build_sections
from fedbench.leaderboard.submissions.trust import Marks
from fedbench.plugins.analyses.clients import count_error
from fedbench.plugins.analyses.groups import GAPS

CLIENTS, MEMBERS = (0, 1, 2, 3), (1, 2)
N_MEMBERS, N_OFL, N_IFL, N_TEST = 40, 60, 100, 400


def use(label, name=None):
    return {
        "name": name or label,
        "label": label,
        "params": {},
        "distribution": "fedbench-privacy 0.1.0",
        "digest": "ab",
    }


PROVENANCE = {
    "fedbench": "0.1.0",
    "python": "3.11.7",
    "torch": "2.11.0",
    "numpy": "2.2.0",
    "scipy": "1.15.0",
    "scikit_learn": "1.6.0",
    "git_commit": "0123456789abcdef",
    "git_dirty": True,
    "platform": "Linux",
    "cpu": "A CPU",
    "cpu_capability": "AVX2",
    "device": "cpu",
    "dtype": "float32",
    "threads": 1,
    "deterministic": True,
}


def identified(fields, targets):
    """The fields of a record with an identity that they agree with; what the test calls ``key`` and
    ``run_key`` is part of it.
    """
    empty = dict.fromkeys(("partition", "federation", "audit", "groups", "thresholds", "adversary"))
    named = {"dataset": {"name": "gauss", "params": {}}, "model": {"name": "mlp", "params": {}}}
    described = {**named, **empty, **fields["described"]}
    defense, attack = (
        ComponentUse.model_validate(fields[kind]).identity() for kind in ("defense", "attack")
    )
    machine = {**PROVENANCE, **fields["provenance"]}
    run = {
        "contract": CONTRACT_VERSION,
        "called": [fields["setting"], fields["run_key"]],
        "seed": fields["seed"],
        "members": fields["members"],
        "defense": defense,
        "provenance": {name: machine[name] for name in ("torch", "dtype")},
        "device": machine["device"].partition(" ")[0],
        "digests": {name: digest for name, digest in fields["digests"].items() if name != "scores"},
        "setting": {
            part: described[part]
            for part in ("partition", "federation", "audit", "groups", "thresholds")
        },
        "targets": list(targets),
        "attacker": described["adversary"] and attack,
        **{
            kind: ComponentUse(**{**use(""), **described[kind]}).identity()
            for kind in ("dataset", "model")
        },
        **({"tuning": True} if described.get("tuning") else {}),
    }
    identity = {"run": run, "attack": attack, "signals": {}, "analyses": {}}
    run_key, key = keys_of(identity)
    made = {"identity": identity, "run_key": run_key, "key": key}
    return {**fields, **made, "described": described, "provenance": machine}


def kept(cells, wanted):
    """The requested records of a run's cells."""
    return [CellResult(r.record, r.all_arrays()) for r in cells if wanted(r.record)]


class Folder:
    """A results folder under construction."""

    def __init__(
        self, root: Path, leak: dict[str, float], attacks=("fedmia-ii", "loss-series"), n_ofl=N_OFL
    ) -> None:
        self.root, self.leak, self.attacks, self.n_ofl = root, leak, attacks, n_ofl
        # defense -> by how much each audited round is more accurate than the one before
        self.spike: dict[str, float] = {}
        (root / "records").mkdir(parents=True)

    def fill(self, seeds=(0, 1, 2), **more) -> Folder:
        for seed in seeds:
            for defense in self.leak:
                for attack in self.attacks:
                    self.add(defense, attack, seed, **more)
        return self

    def parties(self, defense):
        """(coalition, members, targets) of a row."""
        return ("none", (), CLIENTS) if defense == "none" else ("pair", MEMBERS, MEMBERS)

    def add(
        self, defense, attack, seed, outcome="ok", stem=None, ids_from=0, arrays=None, **change
    ) -> Path:
        coalition, members, targets = self.parties(defense)
        fields = {
            "key": f"{defense}/{attack}/{seed}",
            "run_key": f"{defense}/{seed}",
            "outcome": outcome,
            "suite": "demo",
            "setting": "iid",
            "coalition": coalition,
            "members": list(members),
            "seed": seed,
            "defense": use(defense),
            "attack": use(attack),
            "view": "server",
            "described": {
                "dataset": {"name": "gauss", "params": {"dim": 8}},
                "federation": {"clients": 4, "rounds": 30},
            },
            "history": [RoundRow(round=r, accuracy=0.5, train_loss=None) for r in (10, 20, 30)],
            "provenance": PROVENANCE,
            "digests": {"data": "d" * 64, "split": "e" * 64},
            "measured": Costs(
                started=f"2026-03-0{1 + seed % 9}T10:00:00+00:00",
                wall_s=2,
                cpu_s=2,
                attack_cpu_s=0,
                signals_cpu_s=0,
                train_cpu_s=1.0 if defense == "none" else 1.5,
                peak_memory_mb=9,
            ),
        }
        found = {}
        if outcome == "ok":
            made, scored, correct = self._measured(defense, attack, seed, targets, ids_from)
            found = {**made, **(arrays or {})}
            accuracy = float(correct.mean())
            fields |= {
                "targets": scored,
                "utility": Utility(
                    accuracy=accuracy, n_test=len(correct), **change.pop("utility", {})
                ),
            }
            rows = change.pop("history", fields["history"])
            fields["history"] = [
                row.model_copy(update={"accuracy": accuracy - self.spike.get(defense, 0) * before})
                for row, before in zip(rows, range(len(rows))[::-1], strict=True)
            ]
            everyone = [
                np.concatenate([made[f"t{t}_{part}"] for t in targets])
                for part in ("scores", "kind", "canary")
            ]
            fields["pooled"] = score_groups(*everyone, np.random.default_rng(0))
        record = Record(**identified({**fields, **change}, targets))
        if outcome == "ok":
            named = {*array_names(record), *optional_names(record)}
            record.digests["scores"] = digest_of_arrays(
                {name: a for name, a in found.items() if name in named}
            )
        stem = stem or stem_of_run(record)
        path = self.root / "records" / f"{stem}.json"
        before = read_run(path) if path.exists() else []
        self._write(path, [*kept(before, lambda r: r.key != record.key), CellResult(record, found)])
        return path

    def add_outdated(self, defense, attack, seed) -> None:
        """A failed record of a cell that was started before all others."""
        measured = load_records(self.root)[0].record.measured
        older = measured.model_copy(update={"started": "2020-01-01T00:00:00+00:00"})
        self.add(defense, attack, seed, "failed", stem="older", reason="old", measured=older)

    def remove(self, defense, attack, seed=None) -> None:
        """Take cells out of the files of their runs."""

        def named(r):
            return (r.defense.label, r.attack.label) == (defense, attack) and seed in (None, r.seed)

        for path in sorted((self.root / "records").glob("*.json")):
            self._write(path, kept(read_run(path), lambda r: not named(r)))

    def _write(self, path, cells) -> None:
        if cells:
            write_run(path.parent, path.stem, cells)
        else:
            for one in path.parent.glob(f"{path.stem}*"):
                one.unlink()

    def _measured(self, defense, attack, seed, targets, ids_from):
        kind = np.repeat([0, 1, 2], (N_MEMBERS, self.n_ofl, N_IFL)).astype(np.int8)
        arrays, scored = {}, []
        for t in targets:
            # what a sample's score has everywhere
            common = np.random.default_rng([seed, abs(t)]).normal(size=len(kind))
            own = np.random.default_rng([seed, abs(t), *attack.encode(), *defense.encode()]).normal(
                size=len(kind)
            )
            shift = self.leak[defense] * (1 + 0.1 * len(attack))
            scores = (common + 0.4 * own + shift * (kind == 0)).astype(np.float64)
            canary = np.arange(len(kind)) % 20 == 0
            ids = np.arange(len(kind)) + 1000 * abs(t) + ids_from
            arrays |= {
                f"t{t}_scores": scores,
                f"t{t}_kind": kind,
                f"t{t}_ids": ids,
                f"t{t}_canary": canary,
            }
            arrays[f"t{t}_in_mix"] = np.ones(len(kind), np.bool_)
            groups = score_groups(scores, kind, canary, np.random.default_rng(0))
            scored.append(TargetScores(target=t, groups=groups))
        luck = np.random.default_rng(seed).random(N_TEST)
        correct = luck < (0.8 if defense == "none" else 0.75)
        return {**arrays, "test_correct": correct}, scored, correct


def escape_stem(name):
    return re.sub(r"[^a-z0-9]", "_", name.lower())


LEAK = {"none": 1.0, "mixup": 0.8, "cofedmid": 0.0, "grad-sparse": 0.4}


def sections_of(folder):
    """The sections of a folder's board."""
    return build_sections(load_records(folder.root))


def row_of(section, label):
    """The row of one defense."""
    return next(r for r in section.rows if r.label == label)


def blocks_of(folder, plots=False, **more):
    """The blocks of a folder's full board."""
    records, marks = load_records(folder.root), Marks(folder.root)
    return document(Source(records=records, title="Demo", marks=marks, **more), plots)


def board(folder, plots=False, **more):
    """A folder's board as Markdown."""
    return render(blocks_of(folder, plots, **more))


def rows_of(text, after):
    """Cells of the first Markdown table after a line that starts with ``after``."""
    lines = text[re.search(rf"^{re.escape(after)}", text, re.M).start() :].splitlines()
    start = next(i for i, line in enumerate(lines) if line.startswith("|"))
    found = []
    for line in lines[start:]:
        if not line.startswith("|"):
            break
        found.append([c.strip() for c in re.split(r"(?<!\\)\|", line)[1:-1]])
    return [dict(zip(found[0], row, strict=True)) for row in found[2:]]


RULES = ("none", "median", "atm")
ACTIVE = ("gradient-ascent", "fedpoisonmia")
# of the undefended federation; a rule loses 0.1
ACCURACY = {None: 0.8, "gradient-ascent": 0.7, "fedpoisonmia": 0.6}


def decision_of(by_round, member, rng):
    """What a target's record says of an attack that decides."""
    return decision_report(by_round, member, np.full(len(by_round), 10), 0.0, rng)


class Poisoned(Folder):
    """A folder of a poisoning suite: rules that no client takes part in, one passive run and one of
    each active attack.
    """

    def __init__(self, root, attacks=("passive", *ACTIVE), rules=RULES, rounds=6):
        self.rounds = rounds
        super().__init__(root, dict.fromkeys(rules, 0.8), attacks)

    def parties(self, defense):
        return (
            ("pair", MEMBERS, (EVERYBODY.code,))
            if defense == "mixup"
            else ("none", (), (EVERYBODY.code,))
        )

    def add(self, defense, attack, seed, outcome="ok", **change):
        inside = attack if attack in ACTIVE else None
        described = {
            "adversary": inside,
            "insider": {"malicious": 1, "knowledge": "honest"},
            "audit": {"targets": "honest"},
        }
        own = {"run_key": f"{defense}/{inside}/{seed}", "described": described, "view": "client"}
        return super().add(defense, attack, seed, outcome, **{**own, **change})

    def _measured(self, defense, attack, seed, targets, ids_from):
        arrays, scored, _ = super()._measured(defense, attack, seed, targets, ids_from)
        rng = np.random.default_rng([seed, *defense.encode(), *attack.encode()])
        for t in scored:
            member = arrays[f"t{t.target}_kind"] == 0
            shift = {"atm": 0.3, "krum": 0.0}.get(defense, 1.0) * np.where(member, 1, -1)
            by_round = rng.normal(size=(self.rounds, len(member))) + shift
            t.decision = decision_of(by_round, member, rng)
        accuracy = ACCURACY[attack if attack in ACTIVE else None] - 0.1 * (defense != "none")
        correct = np.random.default_rng(seed).random(N_TEST) < accuracy
        return {**arrays, "test_correct": correct}, scored, correct


GROUPS = {"majority": 3, "minority": 1}  # clients
CLUSTERED = {"none": 0.2, "ifca": 0.5, "local-only": 1.0}


def fairness_of(defense, seed):
    """What the analysis of groups found: name -> number."""
    rng = np.random.default_rng([seed, *defense.encode()])
    numbers = {}
    for name, k in GROUPS.items():
        share = rng.uniform(0.7, 0.9)
        numbers |= {
            f"accuracy:{name}": Number(share, (share * (1 - share) / (100 * k)) ** 0.5),
            f"clients:{name}": Number(k),
        }
        numbers[f"n_test:{name}"] = Number(100 * k)
    return numbers | {kind: Number(rng.uniform(0.02, 0.2), 0.01) for kind in GAPS}


class Clustered(Folder):
    """A folder of a clustered federation: an attack that decides and one that does not, asked about
    two groups.
    """

    def __init__(self, root, attacks=("rmia", "shadow"), targets=(-10, -11), purity=1.0):
        self.targets, self.purity = targets, purity
        super().__init__(root, dict(CLUSTERED), attacks)

    def parties(self, defense):
        return (
            ("none", (), self.targets) if defense == "none" else ("uniform", CLIENTS, self.targets)
        )

    def add(self, defense, attack, seed, outcome="ok", **change):
        groups = [
            {"name": n, "fraction": None, "rotation": [0.0, 25.0], "brightness": None}
            for n in GROUPS
        ]
        own = {"view": "external", "described": {"groups": groups, "thresholds": [0.5, 0.8]}}
        own["arrays"] = {"group-fairness:models": np.array([2.0, seed % 2, 1.0, 1 - seed % 2])}
        if outcome == "ok":
            own |= {
                "analyses": self.analyses(defense, attack, seed),
                "history": self.history(defense, seed),
            }
        return super().add(defense, attack, seed, outcome, **{**own, **change})

    def analyses(self, defense, attack, seed):
        numbers = fairness_of(defense, seed) | (
            {} if self.purity is None else {"purity": Number(self.purity, 0.0)}
        )
        found = {"group-fairness": RecordedFindings(numbers=numbers, arrays={"models": "clients"})}
        violated = Number(10 * seed, count_error(10 * seed, 200))
        bounds = {
            "violations": RecordedFindings(
                numbers={
                    "violated": violated,
                    "clients": Number(200),
                    **{
                        f"violated:{name}": Number(n, 1.0)
                        for name, n in zip(GROUPS, (15, 5), strict=True)
                    },
                }
            )
        }
        return found | (bounds if attack == "shadow" else {})

    def history(self, defense, seed):
        more = {"clusters": [3, 1] if seed % 2 else [1, 3], "moved": 0} if defense == "ifca" else {}
        rows = [
            RoundRow(
                round=r, accuracy=0.5, train_loss=None, group_accuracy=[0.5 + r / 100, 0.4], **more
            )
            for r in (10, 20, 30)
        ]
        return [*rows[:2], rows[2].model_copy(update={"moved": seed} if more else {})]

    def _measured(self, defense, attack, seed, targets, ids_from):
        arrays, scored, correct = super()._measured(defense, attack, seed, targets, ids_from)
        for t in scored if attack == "shadow" else ():
            member = arrays[f"t{t.target}_kind"] == 0
            rng = np.random.default_rng([seed, abs(t.target), *defense.encode()])
            shift = {-11: 1.5}.get(t.target, 0.3) * np.where(member, 1, -1)
            t.decision = decision_of(rng.normal(size=(1, len(member))) + shift, member, rng)
        return arrays, scored, correct


def finished_run(**change):
    """A run of 4 clients without groups, bounds or several models."""
    fields = {
        "clients": 4,
        "members": CLIENTS,
        "malicious": (),
        "facts": {},
        "rounds": np.array([10]),
        "rows": (),
        "signals": {},
        "pool": np.zeros(0, int),
        "assignment": np.zeros((0, 4), int),
        "test_y": np.zeros(8, int),
        "predicted": np.zeros(8, int),
        "test_group": np.zeros(8, int),
        "rng": lambda purpose: np.random.default_rng(0),
    }
    return FinishedRun(**{**fields, **change})
