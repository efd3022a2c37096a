"""Figures drawn in processes beside this one while it goes on with the tables; and only those that have to be drawn."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

import numpy as np

from fedbench.core.apart.channel import Channel, pass_on_interrupt
from fedbench.core.apart.child import Child, Patience
from fedbench.core.contract.board import Block, Figure, Fold, Image
from fedbench.core.words.explain import named
from fedbench.leaderboard.figures.earlier import Earlier, made_of
from fedbench.leaderboard.figures.files import alt_of, drawn_files, name_of
from fedbench.leaderboard.statistics.section import Section

Instead = Callable[[str], list[Block]]
"""what a board shows, with the reason, in place of a figure that could not be drawn"""


class NotDrawn(Exception):
    """A figure of the harness's own could not be drawn."""


@dataclass(kw_only=True)
class _Asked:
    figure: Figure
    section: Section
    name: str
    made_of: str
    instead: Instead | None
    image: Image = field(init=False)
    files: dict[str, bytes] = field(default_factory=dict)
    child: Child | None = None
    reason: str = ""

    def whole(self) -> Image:
        """The image with its files."""
        return Image(self.image.alt, {f"{self.name}.{suffix}": content for suffix, content in self.files.items()})


class Easel:
    """``image`` of a figure at once, whose files are empty until ``finished``. ``drawn``: the names of those that were drawn."""

    def __init__(self, earlier: Earlier | None = None, workers: int | None = None) -> None:
        self.drawn: list[str] = []
        self._earlier = earlier or Earlier()
        self._workers = workers or _cores()
        self._running: deque[_Asked] = deque()
        self._asked: dict[int, _Asked] = {}  # by the identity of their images, which are kept here

    def image(self, figure: Figure, section: Section, drawer: str = "", instead: Instead | None = None) -> Image:
        """The figure, from its earlier files or drawn beside this process. ``drawer``: the code of an analysis that draws it."""
        one = self._new(figure, section, drawer, instead)
        if not one.files:
            if not self._running and not self.drawn:
                _prepare()
            while len(self._running) >= self._workers:
                self._collect(self._running.popleft())
            one.child = Child(partial(_draw, figure, section), Patience())
            self.drawn.append(one.name)
            self._running.append(one)
        return one.image

    def image_here(self, figure: Figure, section: Section, drawer: str) -> Image:
        """The same, drawn in this process, which is watched: somebody else's figure. Raises what that raises."""
        one = self._new(figure, section, drawer, None)
        if not one.files:
            one.files = drawn_files(figure)
            self.drawn.append(one.name)
            self._earlier.note(one.name, one.made_of, one.files)
        return one.whole()

    def finished(self, blocks: list[Block]) -> list[Block]:
        """The blocks with whole images. Raises ``NotDrawn``."""
        while self._running:
            self._collect(self._running.popleft())
        return [whole for block in blocks for whole in self._whole(block)]

    def _new(self, figure: Figure, section: Section, drawer: str, instead: Instead | None) -> _Asked:
        name = name_of(figure, section)
        of = made_of(section, figure.kind, figure.title, drawer)
        one = _Asked(figure=figure, section=section, name=name, made_of=of, instead=instead)
        one.files = self._earlier.files(name, of) or {}
        one.image = Image(alt_of(figure, section), {})
        self._asked[id(one.image)] = one
        return one

    def _collect(self, one: _Asked) -> None:
        assert one.child is not None
        for message in one.child:
            if message.kind == "drawn":
                one.files = {suffix: a.tobytes() for suffix, a in message.arrays.items()}
            elif message.kind == "failed":
                one.reason = message.value
        if one.files:
            self._earlier.note(one.name, one.made_of, one.files)
        else:
            one.reason = one.reason or one.child.ending

    def _whole(self, block: Block) -> list[Block]:
        if isinstance(block, Fold):
            return [Fold(block.summary, tuple(whole for inner in block.blocks for whole in self._whole(inner)))]
        one = self._asked.get(id(block))
        if one is None:
            return [block]
        if one.files:
            return [one.whole()]
        if one.instead is None:
            raise NotDrawn(f"{one.name}: {one.reason}")
        return one.instead(one.reason)


def _draw(figure: Figure, section: Section, channel: Channel) -> None:
    try:
        files = drawn_files(figure)
    except BaseException as error:
        pass_on_interrupt(error)
        channel.send("failed", named(error))
    else:
        channel.send("drawn", arrays={suffix: np.frombuffer(content, np.uint8) for suffix, content in files.items()})


def _prepare() -> None:
    """What every figure needs is imported once, before the processes that draw are forked."""
    import matplotlib.backends.backend_agg
    import matplotlib.backends.backend_svg
    import matplotlib.figure  # noqa: F401


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
