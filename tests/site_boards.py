"""Sites made of small results folders by `fedbench leaderboard --html`, and what is in a page."""

from __future__ import annotations

import json
import re
from html import unescape
from html.parser import HTMLParser

from boards import Folder

from fedbench.core.cli.main import main
from fedbench.core.store.results import write_marker

HOSTILE = {
    "script": "<script>alert(1)</script>",
    "end": "</script><img src=x onerror=alert(1)>",
    "quotes": "\"'`;$(reboot)&amp;",
    "rtl": "\u202egnol\u2066",
    "long": "x" * 500,
    "lines": "a\u2028b\u2029c\nd",
    "template": "{{ 7 * 7 }}{% raw %}",
}


def marked(folder, title="Demo"):
    """The folder's root, with a marker that names its title."""
    write_marker(folder.root, {"suite": "demo", "cells": [], "title": title})
    return folder.root


def hostile(root):
    """A results folder with hostile names everywhere, and a cell that failed for a hostile
    reason.
    """
    labels = {name: f"{name} {text}" for name, text in HOSTILE.items()}
    folder = Folder(
        root,
        {"none": 1.0} | dict.fromkeys(labels.values(), 0.4),
        attacks=("loss-series", labels["end"]),
    )
    where = {"setting": labels["script"], "coalition": labels["quotes"]}
    for i, (defense, attack) in enumerate((d, a) for d in folder.leak for a in folder.attacks):
        folder.add(
            defense,
            attack,
            0,
            **where | ({"coalition": "none"} if defense == "none" else {}),
            stem=f"r{i}",
        )
    folder.add(
        labels["end"],
        "loss-series",
        1,
        outcome="failed",
        reason=labels["script"],
        **where,
        stem="failed",
    )
    return marked(folder, labels["end"])


class Page(HTMLParser):
    """A page: its ``tags`` with their attributes, the text of its ``scripts``, its other ``text``,
    its ``board``.
    """

    def __init__(self, path):
        super().__init__()
        self.tags = []
        self.source = path.read_text(encoding="utf-8")
        self.feed(self.source)
        self.scripts = [
            text
            for text in re.findall(r"<script[^>]*>(.*?)</script>", self.source, re.DOTALL)
            if text
        ]
        self.text = unescape(
            re.sub(r"<script.*?</script>|<[^>]*>", "", self.source, flags=re.DOTALL)
        )

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))

    def all(self, tag):
        """The attributes of every such tag."""
        return [attributes for name, attributes in self.tags if name == tag]

    @property
    def board(self):
        """The document in it."""
        (block,) = self.scripts
        return json.loads(block)


def site(folder, *sources):
    """Every page of the site of these sources."""
    assert main(["leaderboard", *map(str, sources), "--html", str(folder)]) == 0
    return {path.name: Page(path) for path in folder.glob("*.html")}


def cells_of(board):
    """(defense, attack, seed) -> its cell, by way of the rows of the first section."""
    section = board["sections"][0]
    return {
        (row["label"], board["uses"][use]["label"], seed): cell
        for row in board["rows"]
        for use, entry in zip(section["attacks"], row["entries"], strict=True)
        for seed, cell in zip(section["seeds"], entry["cells"], strict=True)
    }
