#!/usr/bin/env python3
"""Write what docs/reference/ takes from the code: ``python docs/reference.py`` (``--check``: only look).

A page is prose with blocks between ``<!-- made: KIND NAME -->`` and ``<!-- end -->``, which this writes:

* ``hook NAME``: its signature, one line, and what it announces; ``phase NAME``: its signature, its row of the table of phases,
  its docstring, and what the engine accepts from it; ``method CLASS.NAME``: signature and docstring;
* ``class CLASS``: docstring, a table of its fields, and a table of its properties and methods;
* ``spec MODEL``: the fields of a part of a suite, from its pydantic model; ``recipes``; ``commands``;
* ``pages FOLDER``: the pages of a folder of docs/reference/, a line each.

Every hook and every phase needs a page, every public method of a base class and every context a block; a page or block of
something that is gone is a mistake, too. Nothing is written then.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from pathlib import Path

from reference_parts import (
    BASES,
    CONTEXTS,
    HOOKS,
    PHASES,
    SPECS,
    Mistake,
    class_block,
    commands_block,
    hook_block,
    method_block,
    methods_of,
    phase_block,
    recipes_block,
    spec_block,
)  # fmt: skip

PAGES = Path(__file__).resolve().parent / "reference"
BLOCK = re.compile(r"(<!-- made: (\w+)(?: ([\w./-]+))? -->\n)(.*?)(<!-- end -->)", re.DOTALL)


def filled(text: str, where: str) -> str:
    """A page with its blocks made anew; raises :class:`Mistake` for one that cannot be made."""

    def make(found: re.Match[str]) -> str:
        head, kind, name, _, end = found.groups()
        if kind not in MAKERS:
            raise Mistake(f"{where}: unknown block '{kind}'; there are {', '.join(MAKERS)}")
        try:
            return f"{head}{MAKERS[kind](name or '').strip()}\n{end}"
        except Mistake as mistake:
            raise Mistake(f"{where}: {mistake}") from None

    if text.count("<!-- made:") != len(BLOCK.findall(text)) or text.count("<!-- end -->") != len(BLOCK.findall(text)):
        raise Mistake(f"{where}: a block is not closed, or its first line is misspelt")
    return BLOCK.sub(make, text)


def pages_block(folder: str) -> str:
    """A line a page of ``folder``: its title as a link, and its first sentence."""
    lines = ["| page | |", "|---|---|"]
    order = [*HOOKS, *PHASES]
    for path in sorted((PAGES / folder).glob("*.md"), key=lambda p: (order.index(p.stem) if p.stem in order else -1, p.stem)):
        prose = BLOCK.sub("", path.read_text(encoding="utf-8"))
        title = next(line for line in prose.splitlines() if line.startswith("# ")).removeprefix("# ")
        first = next((p for p in prose.split("\n\n") if p.strip() and not p.startswith(("#", "```", "|"))), "")
        sentence = re.split(r"(?<=[.]) ", " ".join(first.split()), maxsplit=1)[0]
        plain = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", sentence)  # a link would lead elsewhere from here
        lines.append(f"| [{title}]({folder}/{path.name}) | {plain} |")
    return "\n".join(lines)


MAKERS: dict[str, Callable[[str], str]] = {
    "hook": hook_block, "phase": phase_block, "method": method_block, "class": class_block, "spec": spec_block,
    "recipes": lambda _: recipes_block(), "commands": lambda _: commands_block(), "pages": pages_block,
}  # fmt: skip


def wanted() -> dict[str, str]:
    """Block -> the page that it must stand on; ``*`` for any."""
    found = {f"hook {name}": f"hooks/{name}.md" for name in HOOKS}
    found |= {f"phase {name}": f"phases/{name}.md" for name in PHASES}
    found |= {f"method {base}.{name}": "*" for base in BASES for name in methods_of(base)}
    return found | {f"class {name}": "*" for name in CONTEXTS} | {f"spec {name}": "suite.md" for name in SPECS}


def missing(pages: dict[str, str]) -> list[str]:
    """What has no page or block of its own, and pages of what is gone."""
    stands: dict[str, list[str]] = {}
    for page, text in pages.items():
        for _, kind, name, _, _ in BLOCK.findall(text):
            stands.setdefault(f"{kind} {name}", []).append(page)
    bad = []
    for block, page in wanted().items():
        where = stands.get(block, [])
        if not where or (page != "*" and page not in where):
            bad.append(f"docs/reference/{page}: no block '{block}'" if page != "*" else f"docs/reference: no page has '{block}'")
    known = {*HOOKS, *PHASES}
    bad += [f"docs/reference/{p}: there is no such {p.split('/')[0][:-1]}" for p in pages
            if p.startswith(("hooks/", "phases/")) and Path(p).stem not in known]  # fmt: skip
    return bad


def main() -> int:
    """Write all pages, or compare them; the exit status."""
    pages = {p.relative_to(PAGES).as_posix(): p.read_text(encoding="utf-8") for p in sorted(PAGES.rglob("*.md"))}
    problems, made = missing(pages), {}
    for name, text in pages.items():
        try:
            made[name] = filled(text, f"docs/reference/{name}")
        except Mistake as mistake:
            problems.append(str(mistake))
    stale = [name for name, text in made.items() if text != pages[name]]
    if problems:
        print("\n".join(problems), file=sys.stderr)
        return 1
    if "--check" in sys.argv:
        for name in stale:
            print(f"docs/reference/{name} is not what the code says: run `python docs/reference.py`", file=sys.stderr)
        return int(bool(stale))
    for name in stale:
        (PAGES / name).write_text(made[name], encoding="utf-8")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
