"""What `fedbench list` need not do twice: import somebody's package, parse the shipped suites."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys

import pytest
from fake_packages import ANNOUNCE, described, install

from fedbench.core.registry.notes import Notes, cache_folder
from fedbench.core.registry.remembered import cache_file

HEAVY = "import sqlite3\nopen({log!r}, 'a').write('x')\n"  # as costly as what it imports at its top
PARSERS = ("ruamel.yaml", "pydantic", "sqlite3")


@pytest.fixture
def cache(tmp_path, monkeypatch):
    """A cache folder of the test's own."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return cache_folder()


def listed(site, *words: str) -> tuple[str, set[str]]:
    """What `fedbench list` prints in a process of its own, and which of PARSERS it imports."""
    code = (
        "import sys; from fedbench.core.cli.main import main; "
        f"status = main({['list', *words]!r}); print('IMPORTED', status, *(m for m in {PARSERS!r} if m in sys.modules))"
    )
    env = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"} | {"PYTHONPATH": str(site)}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=env)
    *text, last = done.stdout.splitlines()
    assert last.split()[1] == "0", done.stderr
    return "\n".join(text), set(last.split()[2:])


def package(site, tmp_path, version: str = "1.0", name: str = "shield"):
    log = tmp_path / "imports"
    log.touch()
    source = HEAVY.format(log=str(log)) + ANNOUNCE.format(name=name, target="a:B")
    install(site, "counted", source, version)
    return lambda: len(log.read_text())


def test_a_package_is_imported_once_whatever_it_imports_at_its_top(site, tmp_path, cache):
    count = package(site, tmp_path)
    for _ in range(3):  # the first of them writes bytecode beside it
        text, imported = listed(site, "defenses")
        assert re.search(r"^shield .* counted 1\.0$", text, re.MULTILINE) and not imported
    assert count() == 1


def test_another_version_or_another_file_is_imported_again(site, tmp_path, cache):
    count = package(site, tmp_path)
    listed(site, "defenses")
    (site / "counted-1.0.dist-info").rename(site / "counted-1.1.dist-info")
    (site / "counted-1.1.dist-info" / "METADATA").write_text("Metadata-Version: 2.1\nName: counted\nVersion: 1.1\n")
    for _ in range(2):
        assert "counted 1.1" in listed(site, "defenses")[0]
    assert count() == 2
    (site / "counted.py").write_text((site / "counted.py").read_text().replace("'shield'", "'a-sword'"))
    for _ in range(2):
        text = listed(site, "defenses")[0]
        assert re.search(r"^a-sword ", text, re.MULTILINE) and not re.search(r"^shield ", text, re.MULTILINE)
    assert count() == 3


def test_of_an_editable_install_a_changed_file_of_the_tree_is_enough(site, tmp_path, cache):
    tree, log = tmp_path / "tree", tmp_path / "imports"
    (tree / "counted").mkdir(parents=True)
    (tree / "pyproject.toml").touch()
    (tree / "counted" / "__init__.py").write_text(HEAVY.format(log=str(log)) + ANNOUNCE.format(name="shield", target="a:B"))
    (tree / "counted" / "names.txt").write_text("one")
    described(site, "counted", "counted")
    info = site / "counted-1.0.dist-info"
    (info / "direct_url.json").write_text(json.dumps({"url": tree.as_uri(), "dir_info": {"editable": True}}))
    for n in (1, 1):
        assert "shield " in listed(f"{site}{os.pathsep}{tree}", "defenses")[0] and len(log.read_text()) == n
    (tree / "counted" / "names.txt").write_text("three")
    for n in (2, 2):
        assert "shield " in listed(f"{site}{os.pathsep}{tree}", "defenses")[0] and len(log.read_text()) == n


def test_a_memory_with_one_other_letter_is_none_and_is_written_anew(site, tmp_path, cache):
    count = package(site, tmp_path)
    for _ in range(2):
        listed(site, "defenses")
    cache_file().write_text(cache_file().read_text().replace('"shield"', '"shells"'))
    for _ in range(2):
        text = listed(site, "defenses")[0]
        assert re.search(r"^shield ", text, re.MULTILINE) and "shells" not in text
    assert count() == 2


def test_the_shipped_suites_are_parsed_once(site, cache):
    first, imported = listed(site, "suites")
    assert {"ruamel.yaml", "pydantic"} <= imported
    again, imported = listed(site, "suites")
    assert again == first and not imported
    (cache / "suites.json").write_text((cache / "suites.json").read_text().replace("Partial", "Impartial"))
    assert listed(site, "suites")[0] == first


def test_names_of_suites_are_completed_without_parsing_any(cache):
    code = (
        "import sys; from fedbench.core.cli.complete import suites; found = suites(None, None, 'partial_def'); "
        f"print(found[0].value, *(m for m in {PARSERS!r} if m in sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "partial_defense\n"


# -- the file that it is kept in -------------------------------------------------------------------------------------------------


def test_what_several_commands_write_is_kept_together(tmp_path):
    path = tmp_path / "deep" / "notes.json"
    one, two = Notes(path, 1), Notes(path, 1)
    assert one.read() == two.read() == {}
    one.add({"a": [1]})
    two.add({"b": {"c": None}})
    assert one.read() == {"a": [1], "b": {"c": None}}
    one.add({"a": 2}, keep=lambda name: name != "b")
    assert two.read() == {"a": 2} and Notes(path, 2).read() == {}
    assert [p.name for p in path.parent.iterdir()] == ["notes.json"]


def test_many_writers_at_once_leave_a_whole_file(tmp_path):
    code = (
        "import sys; from pathlib import Path; from fedbench.core.registry.notes import Notes\n"
        "for i in range(40): Notes(Path(sys.argv[1]), 1).add({f'{sys.argv[2]}-{i}': 'x' * 2000})"
    )
    words = [sys.executable, "-c", code, str(tmp_path / "notes.json")]
    writers = [subprocess.Popen([*words, str(i)]) for i in range(3)]
    seen = []
    while any(w.poll() is None for w in writers):
        seen.append(len(Notes(tmp_path / "notes.json", 1).read()))
    assert [w.returncode for w in writers] == [0, 0, 0]
    assert 0 not in seen[next((i for i, n in enumerate(seen) if n), 0) + 1 :]  # once there is one, it is never half written
    assert set(Notes(tmp_path / "notes.json", 1).read().values()) == {"x" * 2000}
