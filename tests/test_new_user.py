"""`import fedbench` as a script and a notebook use it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from running import HANG_S, suite

import fedbench
import fedbench.core
import fedbench.testing
from fedbench.core import MEMBER, OFL, Attack, UserError
from fedbench.core.metrics import auc
from fedbench.core.store.integrity import sealed

ROOT = Path(__file__).parents[1]
BOARD = ROOT / "leaderboard" / "boards" / "partial_defense.json"


@pytest.fixture(autouse=True)
def plain(monkeypatch):
    """Tables as lists of dicts, as where pandas is not installed."""
    monkeypatch.setitem(sys.modules, "pandas", None)


class MeanLoss(Attack):
    """What `loss-series` is, as a user writes it."""

    needs = frozenset({"loss"})

    def score(self, observations, audit):
        return -observations.of_target("loss").mean(axis=0)


@pytest.mark.parametrize("module", [fedbench, fedbench.core, fedbench.testing])
def test_dir_lists_the_public_names_and_each_is_there(module):
    assert dir(module) == sorted(module.__all__)
    assert all(hasattr(module, name) for name in module.__all__)
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        module.nothing  # noqa: B018


def test_importing_fedbench_imports_nothing_else():
    heavy = {"click", "numpy", "pydantic", "torch"}
    code = f"import sys, fedbench; fedbench.__version__; print({heavy} & set(sys.modules))"
    assert (
        subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, check=True
        ).stdout
        == "set()\n"
    )


def test_a_board_has_the_numbers_of_its_document():
    found, board = fedbench.load(BOARD), json.loads(BOARD.read_text())
    assert [(r["defense"], r["worst"], r["worst_low"]) for r in found.rows] == [
        (row["label"], *(row["numbers"]["worst"] or [None, None])[:2]) for row in board["rows"]
    ]
    assert [cell["key"] for cell in found.cells] == board["cells"]["key"]
    with pytest.raises(UserError, match="a board has neither scores nor observations"):
        found.scores(found.cells[0])


@pytest.mark.slow
def test_a_folder_its_board_and_its_bundle_say_the_same(finished, tmp_path, words_of):
    folder = fedbench.load(finished)
    (tmp_path / "board.json").write_bytes(sealed(folder.board()))
    words_of("export", finished, "-o", tmp_path / "b.zip")
    board, bundle = fedbench.load(tmp_path / "board.json"), fedbench.load(tmp_path / "b.zip")
    assert bundle.cells == folder.cells
    assert board.rows == folder.rows
    exact = {cell.pop("key")[:12]: cell for cell in folder.cells}
    for cell in board.cells:
        same = exact[cell.pop("key")]
        assert cell == {
            name: pytest.approx(v, abs=1e-2) if isinstance(v, float) else v
            for name, v in same.items()
        }


@pytest.mark.slow
def test_scores_and_an_attack_of_ones_own_give_the_recorded_numbers(finished, tmp_path, words_of):
    found = fedbench.load(finished)
    words_of("export", finished, "--observations", "-o", tmp_path / "b.zip")
    assert fedbench.load(tmp_path / "b.zip").judge(MeanLoss()) == found.judge(MeanLoss())
    recorded = {cell["defense"]: cell for cell in found.cells if cell["attack"] == "loss-series"}
    judged = {cell["defense"]: cell for cell in found.judge(MeanLoss())}
    for defense, cell in recorded.items():
        cpu_s = pytest.approx(cell["train_cpu_s"], abs=1e-3)
        assert judged[defense] == cell | {"attack": "MeanLoss", "key": "", "train_cpu_s": cpu_s}
        targets = found.scores(cell).values()
        judgeable = [(t, np.isin(t.kind, [MEMBER, OFL])) for t in targets]
        aucs = [auc(t.scores[known], t.kind[known] == MEMBER) for t, known in judgeable]
        assert sum(aucs) / len(aucs) == pytest.approx(cell["auc"])
    with pytest.raises(UserError, match="0 cells with the key 'none'"):
        found.scores("none")


SCRIPT = """\
import fedbench
given = {"set": "seeds=[0, 1]", "only": ["defense=none", "seed=1"]}
planned = fedbench.plan("tiny.yaml", **given)
found = fedbench.run("tiny.yaml", results="r", workers=1, plots=False, **given)
assert [c["key"] for c in planned] == [c["key"] for c in found.cells], planned
print([(c["defense"], c["seed"], c["outcome"]) for c in found.cells])
"""


@pytest.mark.slow
def test_a_script_runs_once_and_needs_no_guard_of_its_main_module(tmp_path):
    suite(tmp_path, defenses=["none", "grad-noise"])
    (tmp_path / "script.py").write_text("import sys; sys.modules['pandas'] = None\n" + SCRIPT)
    done = subprocess.run(
        [sys.executable, "script.py"], cwd=tmp_path, capture_output=True, text=True
    )
    assert done.stdout.count("[('none', 1, 'ok')]") == 1, done.stdout + done.stderr


@pytest.mark.slow
@pytest.mark.nightly
def test_the_notebook_runs_and_is_committed_without_outputs(tmp_path):
    import nbformat
    from nbclient import NotebookClient

    book = nbformat.read(ROOT / "examples" / "from_python.ipynb", as_version=4)
    code = [cell for cell in book.cells if cell.cell_type == "code"]
    assert not any(cell.outputs or cell.execution_count for cell in code)
    NotebookClient(book, timeout=HANG_S, resources={"metadata": {"path": tmp_path}}).execute()
    found = {
        name: text
        for cell in code
        for out in cell.outputs
        for name, text in out.get("data", {}).items()
    }
    assert {"text/html", "image/png"} <= set(found)
    assert ["none", "LossDrop"] in [line.split()[1:3] for line in found["text/plain"].splitlines()]
