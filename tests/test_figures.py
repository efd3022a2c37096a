"""Which figures of a board are drawn, and which are taken as they were drawn before."""

from __future__ import annotations

import json

import pytest
from boards import Folder

from fedbench.core.contract.board import Figure
from fedbench.leaderboard import document
from fedbench.leaderboard.board import MarkdownBoard
from fedbench.leaderboard.figures import earlier
from fedbench.leaderboard.figures.earlier import FIGURES, Earlier
from fedbench.leaderboard.figures.easel import Easel, NotDrawn
from fedbench.leaderboard.figures.files import drawn_files, name_of
from fedbench.leaderboard.statistics.build import build_sections

LEAK = {"none": 1.0, "mixup": 0.8}


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Two settings, of one of which there are two kinds of figures."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    made = Folder(tmp_path / "r", LEAK, attacks=("loss-series",)).fill((0, 1))
    for defense in LEAK:
        for seed in (0, 1):
            made.add(defense, "loss-series", seed, stem=f"other-{defense}-{seed}", setting="other", key=f"other/{defense}/{seed}")
    return made


@pytest.fixture
def drawn(monkeypatch):
    """The kinds and settings of the figures of the last board that had to be drawn."""
    easels = []

    class Watched(Easel):
        def __init__(self, *args):
            super().__init__(*args)
            easels.append(self)

    monkeypatch.setattr(document, "Easel", Watched)
    return lambda: sorted("-".join(name.split("-")[:2]) for name in easels[-1].drawn)


def images(folder):
    return {path.name: path.read_bytes() for path in (folder.root / "leaderboard").glob("*.[ps][nv]g")}


def write(folder):
    MarkdownBoard().write(folder.root)
    return images(folder)


ALL = ["roc-iid", "roc-other", "tradeoff-iid", "tradeoff-other"]


def test_only_figures_whose_records_changed_are_drawn_again(folder, drawn):
    first = write(folder)
    assert drawn() == ALL and len(first) == 2 * len(ALL)
    assert write(folder) == first and drawn() == []
    folder.add("mixup", "loss-series", 1, stem="other-mixup-1", setting="other", key="other/mixup/1", ids_from=0,
               facts={"a fact": 1})  # fmt: skip
    write(folder)
    assert drawn() == ["roc-other", "tradeoff-other"]


def test_a_figure_that_was_changed_or_lost_is_drawn_again(folder, drawn):
    first = write(folder)
    (path,) = (folder.root / "leaderboard").glob("roc-iid*.png")
    path.write_bytes(path.read_bytes()[:-1])
    (other,) = (folder.root / "leaderboard").glob("tradeoff-other*.svg")
    other.unlink()
    assert write(folder) == first
    assert drawn() == ["roc-iid", "tradeoff-other"]


@pytest.mark.parametrize("content", [
    "", "edited", *(pytest.param(text, marks=pytest.mark.slow) for text in ("{}", "null", '{"schema_version": 6, "figures": {}}'))
])
def test_a_damaged_memory_of_figures_counts_as_none(folder, drawn, content):
    first = write(folder)
    path = folder.root / "leaderboard" / FIGURES
    known = json.loads(path.read_text())
    next(iter(known["figures"].values()))["made_of"] = "0" * 64
    path.write_text(json.dumps(known) if content == "edited" else content)
    assert write(folder) == first
    assert drawn() == ALL


def test_another_version_of_what_draws_draws_all_again(folder, drawn, monkeypatch):
    write(folder)
    monkeypatch.setattr(earlier, "_code", lambda: {"rules": "others"})
    write(folder)
    assert drawn() == ALL


def figures(section, names="abcd"):
    def draw(style):
        figure = style.new_figure(2, 2)
        figure.subplots().plot([0, 1])
        return figure

    return [Figure(name, name, draw) for name in names]


@pytest.mark.parametrize("workers", [1, 2, 8])
def test_drawn_side_by_side_they_are_the_same(folder, workers):
    section = build_sections(folder_records(folder))[0]
    easel, wanted = Easel(workers=workers), figures(section)
    whole = easel.finished([easel.image(figure, section) for figure in wanted])
    assert [image.files for image in whole] == [
        {f"{name_of(figure, section)}.{suffix}": content for suffix, content in drawn_files(figure).items()} for figure in wanted
    ]
    assert easel.drawn == [name_of(figure, section) for figure in wanted]


def folder_records(folder):
    from fedbench.core.store.reading import load_records

    return load_records(folder.root)


def broken(style):
    raise ValueError("no ink")


def killed(style):
    import os
    import signal

    os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.parametrize(("draw", "reason"), [(broken, "no ink"), (killed, "SIGKILL")])
def test_a_figure_that_cannot_be_drawn_says_so(folder, draw, reason):
    section = build_sections(folder_records(folder))[0]
    easel, said = Easel(Earlier()), []
    image = easel.image(Figure("x", "x", draw), section, "code", lambda why: said.append(why) or [])
    assert easel.finished([image]) == [] and reason in said[0]
    easel = Easel()
    with pytest.raises(NotDrawn, match=reason):
        easel.finished([easel.image(Figure("x", "x", draw), section)])
