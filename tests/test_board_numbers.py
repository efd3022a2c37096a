"""Every table of some small boards, cell by cell, as committed: no change of the code changes a number without being noticed.

``python tests/test_board_numbers.py`` writes the file anew, where a change of the numbers is what was wanted.
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path

import pytest
from boards import Clustered, Folder, Poisoned, blocks_of, worlds
from claim_boards import REPORTED, STRENGTHS, TUNING, Cells

from fedbench.core import Image, Table, Value

EXPECTED = Path(__file__).with_name("board_numbers.json")
COFEDMID = {"source": "cofedmid", "setting": "iid", "where": {"table": "Table 1", "dataset": "cifar100", "model": "resnet18"}}
FEDPOISONMIA = {
    "source": "fedpoisonmia", "setting": "iid", "where": {"table": "Table 2", "dataset": "texas100", "partition": "iid"},
    "attacks": {"gradient-ascent": "ga"},
}  # fmt: skip
IFCA_MIR = {"source": "ifca_mir", "setting": "iid", "where": {"dataset": "mnist"}}
SETTINGS = {"own": {"none": 2.0, "shield": 0.0, "mixup": 1.5}, "other": {"none": 2.0, "shield": 2.0, "mixup": 0.0, "alone": 1.0}}


def ranking(root):
    """Floors, an inverted attack, cells that failed, were skipped or are missing."""
    leak = {"none": 1.5, "mixup": 0.8, "flip": -0.8, "cofedmid": 0.0, "free-rider": 0.0, "placebo": 1.5, "late": 0.3}
    folder = Folder(root, leak)
    for seed in range(3):
        said = {"n": 8.0 + seed, "kind": "b" if seed else "a", "tight": True, "list": [seed, 2], "long": [seed] * (5 + seed)}
        folder.fill((seed,), facts=said)
    folder.add("late", "fedmia-ii", 1, "failed", reason="no reason")
    for seed in range(3):
        folder.add("mixup", "loss-series", seed, "skipped", reason="does not apply")
    return folder


BOARDS = {  # name -> (folder, what else the document has)
    "ranking": (ranking, {}),
    "one seed": (lambda root: Folder(root, {"none": 1.5, "mixup": 0.8}).fill((0,)), {}),
    "rates": (lambda root: Folder(root, {"none": 1.0, "mixup-1": 0.8, "mixup-2": 0.3, "hamp": 0.0}, n_ofl=400).fill(),
              {"published": [COFEDMID]}),
    "aligned": (lambda root: Folder(root, {"none": 2.0, "mixup": 0.1}, n_ofl=150).fill(range(5)), {}),
    "claims": (lambda root: Folder(root, {"none": 1.5, "cofedmid": 0.0, "hamp": 0.5}).fill(
        suite="partial_defense", setting="digits"), {}),
    "poisoned": (lambda root: Poisoned(root, rules=("none", "trimmed-mean", "atm")).fill(), {"published": [FEDPOISONMIA]}),
    "clustered": (lambda root: Clustered(root).fill(), {"published": [IFCA_MIR]}),
    "tuned": (lambda root: Cells(root, {"iid": STRENGTHS}, seeds=REPORTED, tuning=TUNING),
              {"analyses": [{"name": "tuned", "params": {"compared": "mine"}}]}),
    "settings": (lambda root: worlds(root, SETTINGS, seeds=range(5)), {}),
}  # fmt: skip


def tables(name, root):
    """Title -> rows of the tables with that title, each a list of cells: numbers and words."""
    made, more = BOARDS[name]
    found = {}
    for table in (block for block in blocks_of(made(root), **more) if isinstance(block, Table)):
        found.setdefault(table.title, []).extend([cell(content) for content in row] for row in table.rows)
    return found


def cell(content):
    if isinstance(content, Value):
        numbers = [content.mean, content.half_width, *(content.ends or ()), content.n, content.best]
        said = [*map(str, content.outcomes), words(content.suffix)]
        return [float(f"{x:.8g}") for x in numbers if x is not None] + said
    return [words(content)]


def words(text):
    return "".join(map(words, text)) if isinstance(text, tuple) else str(getattr(text, "text", text or ""))


def flat(tables, kind):
    """(title, row, column, place) -> what is of that kind, a number or words."""
    cells = ((title, i, j, of) for title, rows in tables.items() for i, row in enumerate(rows) for j, of in enumerate(row))
    return {(*at, k): x for *at, of in cells for k, x in enumerate(of) if isinstance(x, kind)}


@pytest.mark.parametrize("name", BOARDS)
def test_every_number_of_a_board_is_what_it_was(name, tmp_path):
    expected, found = json.loads(EXPECTED.read_text())[name], tables(name, tmp_path / "results")
    assert flat(found, str) == flat(expected, str)
    assert flat(found, float) == pytest.approx(flat(expected, float), rel=1e-5, abs=1e-9, nan_ok=True)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "own"), [("poisoned", "accuracy"), ("tuned", "tuned"), ("rates", "sweep")])
def test_the_figures_of_a_board_are_drawn(name, own, tmp_path):
    made, more = BOARDS[name]
    images = [b for b in blocks_of(made(tmp_path / "results"), plots=True, **more) if isinstance(b, Image)]
    assert {min(image.files).partition("-")[0] for image in images} == {"roc", "tradeoff", own}


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        made = {name: tables(name, Path(folder) / name) for name in BOARDS}
    lines = json.dumps(made, ensure_ascii=False, separators=(",", ":")).replace("]],", "]],\n")
    EXPECTED.write_text(lines + "\n")
    sys.stdout.write(f"{EXPECTED}: {len(made)} boards\n")
