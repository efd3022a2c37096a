"""Sites made of small results folders, and what is in a page."""

from __future__ import annotations

import json
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

from boards import Folder

from fedbench.leaderboard.site.write import make_site

HOSTILE = {
    "script": "<script>alert(1)</script>", "end": "</script><img src=x onerror=alert(1)>", "quotes": "\"'`;$(reboot)&amp;",
    "rtl": "\u202egnol\u2066", "long": "x" * 500, "lines": "a\u2028b\u2029c\nd", "template": "{{ 7 * 7 }}{% raw %}",
}  # fmt: skip


def marked(folder: Folder, title: str = "Demo", **more: Any) -> Path:
    """The folder's root, with a marker that names its title."""
    facts = {"schema_version": 2, "suite": "demo", "cells": [], "title": title, **more}
    (folder.root / "fedbench.json").write_text(json.dumps(facts))
    return folder.root


def hostile(root: Path) -> Path:
    """A results folder whose every name is hostile, and whose cells fail for hostile reasons."""
    labels = {name: f"{name} {text}" for name, text in HOSTILE.items()}
    folder = Folder(root, {"none": 1.0} | dict.fromkeys(labels.values(), 0.4), attacks=("loss-series", labels["end"]))
    for i, (defense, attack) in enumerate((d, a) for d in folder.leak for a in folder.attacks):
        change = {"setting": labels["script"], "coalition": "none" if defense == "none" else labels["quotes"], "stem": f"r{i}"}
        folder.add(defense, attack, 0, **change)
    where = {"setting": labels["script"], "coalition": labels["quotes"], "stem": "failed"}
    folder.add(labels["end"], "loss-series", 1, outcome="failed", reason=labels["script"], **where)
    return marked(folder, labels["end"])


class Page(HTMLParser):
    """Tags with their attributes, and the text of each ``<script>``."""

    def __init__(self, path: Path) -> None:
        super().__init__(convert_charrefs=True)
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text: list[str] = []
        self.scripts: list[str] = []
        self._inside: list[str] = []
        self.source = path.read_text(encoding="utf-8")
        self.feed(self.source)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in ("meta", "link", "input", "br", "img"):
            self._inside.append(tag)
        if tag == "script":
            self.scripts.append("")

    def handle_endtag(self, tag: str) -> None:
        assert self._inside.pop() == tag

    def handle_data(self, data: str) -> None:
        if self._inside[-1:] == ["script"]:
            self.scripts[-1] += data
        else:
            self.text.append(data)

    def all(self, tag: str) -> list[dict[str, str | None]]:
        """The attributes of every such tag."""
        return [attributes for name, attributes in self.tags if name == tag]

    @property
    def board(self) -> dict[str, Any]:
        """The document in it."""
        (block,) = [s for s in self.scripts if s]
        found: dict[str, Any] = json.loads(block)
        return found


def site(folder: Path, *sources: Path) -> dict[str, Page]:
    """Every page of the site of these sources."""
    made = make_site(sources, folder)
    return {name: Page(folder / name) for name in made if name.endswith(".html")}


def cells_of(board):
    """(defense, attack, seed) -> its cell, by way of the rows."""
    section = board["sections"][0]
    return {
        (row["label"], board["uses"][use]["label"], seed): cell
        for row in board["rows"] for use, entry in zip(section["attacks"], row["entries"], strict=True)
        for seed, cell in zip(section["seeds"], entry["cells"], strict=True)
    }  # fmt: skip
