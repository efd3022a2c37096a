"""A gate as JUnit XML: a test case a row and ceiling, and one a compared cell."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from xml.etree import ElementTree

from fedbench.core.words import printable
from fedbench.leaderboard.comparison.cells import Key
from fedbench.leaderboard.comparison.compare import ComparedRow, Comparison
from fedbench.leaderboard.gate.report import Gate


@dataclass(frozen=True)
class _Case:
    place: str
    name: str
    failures: tuple[str, ...]


def junit(gate: Gate) -> bytes:
    """Return the document."""
    root = ElementTree.Element("testsuites", name="fedbench compare")
    _add_suite(root, "ceilings", list(_of_ceilings(gate)))
    if gate.comparison is not None:
        _add_suite(root, "comparison", list(_of_cells(gate, gate.comparison)))
    ElementTree.indent(root)
    return bytes(ElementTree.tostring(root, encoding="utf-8", xml_declaration=True)) + b"\n"


def _add_suite(root: ElementTree.Element, name: str, cases: list[_Case]) -> None:
    if not cases:
        return
    failed = sum(bool(case.failures) for case in cases)
    counts = {"name": name, "tests": str(len(cases)), "failures": str(failed)}
    suite = ElementTree.SubElement(root, "testsuite", counts)
    for case in cases:
        names = {"classname": printable(case.place), "name": printable(case.name)}
        element = ElementTree.SubElement(suite, "testcase", names)
        if case.failures:
            texts = [printable(text) for text in case.failures]
            failure = ElementTree.SubElement(element, "failure", message=texts[0])
            failure.text = "\n".join(texts)


def _of_ceilings(gate: Gate) -> Iterator[_Case]:
    for c in gate.ceilings:
        place = f"{c.setting}.{c.coalition}.{c.view}"
        failures: tuple[str, ...] = ()
        if not c.passed:
            unit = f" {c.unit}" if c.unit else ""
            measured = f"{c.measured}{unit}" if c.measured else "n/a"
            text = f"{c.verdict}: {c.name} {measured}, ceiling {c.most:g}{unit}; {c.reason}"
            failures = (text.removesuffix("; "),)
        yield _Case(place, f"{c.defense} {c.name}", failures)


def _of_cells(gate: Gate, comparison: Comparison) -> Iterator[_Case]:
    if not comparison.compared:
        yield _Case(comparison.suite, "numbers", ("no number could be compared",))
    by_key: dict[Key, list[ComparedRow]] = {}
    for row in comparison.rows:
        by_key.setdefault(row.key, []).append(row)
    for key, rows in sorted(by_key.items()):
        failing = [row for row in rows if row.verdict in gate.fail_on]
        place = f"{comparison.suite}.{key.setting}.{key.coalition}"
        yield _Case(place, str(key), tuple(map(_text, failing)))


def _text(row: ComparedRow) -> str:
    parts: list[str] = [row.verdict]
    m = row.measure
    if m is not None:
        parts.append(m.title)
    if m is not None and row.pairing is not None:
        unit = f" {m.unit}" if m.unit else ""
        numbers = (*row.pairing.means, row.tolerance or 0.0)
        old, new, tolerance = (f"{m.scale * number:g}{unit}" for number in numbers)
        parts.append(f"{old} -> {new}, tolerance {tolerance}")
    return ": ".join([*parts, *row.reasons])
