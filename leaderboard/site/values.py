"""Texts and numbers of a board's document: printable, rounded, or packed into characters."""

from __future__ import annotations

import math
import shlex
from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from fedbench.core import MEMBER
from fedbench.core.cli.options import parse_only
from fedbench.core.contract.board import Block, Bullets, Note, Quote, Text
from fedbench.core.metrics import Group, Interval
from fedbench.core.metrics.registry import group_masks
from fedbench.core.store.reading import Candidates
from fedbench.core.words import one_line, printable

LONGEST, PARAGRAPH = 200, 2_000  # characters of a name or a value, of a sentence
DECADES = 4  # of the rates that a curve holds: 1e-4 to 1
BINS = 20
BEYOND = 0.005  # share of the scores at either end that the outer bins take in
_DIGITS = np.array(list("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"))


def text(value: object, limit: int = LONGEST) -> str:
    """Return text of any origin on one line of printable characters."""
    return one_line(str(value), limit)


def plain(content: Text) -> str:
    """Return a board's text on one line, with the blanks between its parts: pages escape it."""
    if isinstance(content, tuple):
        return "".join(map(plain, content))
    part = Quote(content, LONGEST) if isinstance(content, str) else content
    limit = part.limit if isinstance(part, Quote) else PARAGRAPH
    before = " " * part.text[:1].isspace()
    after = " " * part.text[1:][-1:].isspace()
    return before + text(part.text, limit) + after


def lines(blocks: Iterable[Block]) -> list[str]:
    """Return every paragraph and every item of a list."""
    texts: list[Text] = []
    for block in blocks:
        if isinstance(block, Note):
            texts.append(block.text)
        elif isinstance(block, Bullets):
            texts += block.items
    return list(map(plain, texts))


def number(value: float | None, digits: int = 4) -> float | int | None:
    """Return the number rounded behind the point, or to so many significant digits where it is
    small; None for what is not finite.
    """
    if value is None or not math.isfinite(value):
        return None
    rounded = round(float(value), digits) or float(f"{value:.{digits - 1}e}")
    is_whole = rounded == int(rounded) and abs(rounded) < 1e15
    return int(rounded) if is_whole else rounded


def interval(estimate: Interval | None) -> list[float | int | None] | None:
    """Return [mean, low, high]; the ends are None where the width is not known, or leaves out the
    variance of training.
    """
    if estimate is None:
        return None
    if not estimate.between:
        return [number(estimate.mean), None, None]
    return [number(estimate.mean), number(estimate.low), number(estimate.high)]


def packed(values: np.ndarray, width: int = 2) -> str:
    """Return [n] whole numbers in ``width`` characters each; larger ones as the largest."""
    numbers = np.clip(values, 0, 64**width - 1).astype(np.int64)
    shifts = 6 * np.arange(width)[::-1]
    digits = (numbers[:, None] >> shifts) & 63
    return "".join(_DIGITS[digits].ravel())


def packed_numbers(values: Sequence[float | None], scale: int, width: int) -> str:
    """Return each as ``scale`` times the number, rounded, in ``width`` characters; the largest they
    hold where there is none.
    """
    none = 64**width - 1
    numbers = np.array(values, float)  # NaN where there is none
    scaled = np.minimum(np.round(numbers * scale), none - 1)
    return packed(np.where(np.isfinite(numbers), scaled, none), width)


def packed_rates(rates: np.ndarray) -> str:
    """Return [n] rates on a logarithmic scale from 1e-4 to 1; 0 is what is below half of its first
    step.
    """
    largest = 64**2 - 1
    with np.errstate(divide="ignore"):
        steps = np.round((np.log10(rates) / DECADES + 1) * largest)
    return packed(np.where(rates > 0, np.clip(steps, 1, largest), 0))


def only_of(names: Mapping[str, str]) -> str:
    """Return ``setting=digits,coalition=pair``, quoted for a shell; "" where the command line would
    read something else.
    """
    option = ",".join(f"{kind}={name}" for kind, name in names.items())
    if parse_only((option,)) != {kind: {name} for kind, name in names.items()}:
        return ""
    return safe(shlex.quote(option))


def safe(quoted: str) -> str:
    """Return the command; "" where it holds what a terminal acts on or hides."""
    good = printable(quoted) == quoted and "\n" not in quoted and len(quoted) <= 2_000
    return quoted if good else ""


def histogram(
    targets: Iterable[Candidates], group: Group
) -> tuple[list[float | int | None] | None, str]:
    """Return ([low, high], packed counts of members, then of non-members) of all targets together,
    those of ``group``; (None, "") of nothing. Inner bins are of one width; the outer ones take in
    what lies beyond.
    """
    members, nonmembers = [np.empty(0)], [np.empty(0)]
    for c in targets:
        mask = group_masks(c.kind, c.canary, c.in_mix).get(group, np.zeros(len(c.kind), bool))
        members.append(c.scores[mask & (c.kind == MEMBER)])
        nonmembers.append(c.scores[mask & (c.kind != MEMBER)])
    classes = np.concatenate(members), np.concatenate(nonmembers)
    scores = np.concatenate(classes)
    if not scores.size:
        return None, ""
    low, high = np.quantile(scores, [BEYOND, 1 - BEYOND])
    counts = np.concatenate([_counts(part, low, high) for part in classes])
    return [number(float(f"{end:.4g}")) for end in (low, high)], packed(counts)


def _counts(scores: np.ndarray, low: float, high: float) -> np.ndarray:
    bins = np.zeros(len(scores))
    if high > low:
        bins = np.clip(np.floor(BINS * ((scores - low) / (high - low))), 0, BINS - 1)
    return np.asarray(np.bincount(bins.astype(np.int64), minlength=BINS))
