"""The documents as a site, and what a published repository has beside them."""

from __future__ import annotations

import importlib.util
import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

from fedbench.core.cli.main import COMMANDS
from fedbench.core.contract.phases import PHASES
from fedbench.core.contract.threat import LEVELS, View

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"


@pytest.fixture(scope="module")
def conf() -> Any:
    """``docs/conf.py``."""
    spec = importlib.util.spec_from_file_location("site_conf", DOCS / "conf.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(("text", "folder", "shown"), [
    ("[core/contract/](core/contract) x", ROOT, "`core/contract` x"),
    ("[the script](../tests/reliability.py)", DOCS, "the script (`tests/reliability.py`)"),
    ("[LICENSE](LICENSE)", ROOT, "`LICENSE`"),
    ("[a](method.md#ranks)", DOCS, "[a](method.md#ranks)"),
    ("[a](../leaderboard/boards/poisoning.md)", DOCS, "[a](../leaderboard/boards/poisoning.md)"),
    ("[a](README.md#layout)", ROOT, "[a](README.md#layout)"),
    ("![p](docs/roc-null-misaligned.png)", ROOT, "![p](docs/roc-null-misaligned.png)"),
    ("[a](https://example.org/core) [b](#here)", ROOT, "[a](https://example.org/core) [b](#here)"),
    ("[gone](core/gone.py)", ROOT, "[gone](core/gone.py)"),
    ("```\n[core](core)\n```\n[core](core)", ROOT, "```\n[core](core)\n```\n`core`"),
])  # fmt: skip
def test_links_out_of_the_site_are_paths_and_broken_ones_are_left_for_the_build_to_find(conf, text, folder, shown):
    assert conf.with_paths(text, folder) == shown


def test_every_page_is_in_the_navigation():
    listed = re.findall(r"```\{toctree\}\n(.*?)```", (DOCS / "index.md").read_text(), re.DOTALL)
    entries = [line for block in listed for line in block.splitlines() if line and not line.startswith(":")]
    found = {p.resolve() for e in entries for p in DOCS.glob(f"{e}.md")}
    beside = {ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md")}
    pages = {p for p in DOCS.rglob("*.md") if "simulations" not in p.parts} | set((ROOT / "leaderboard" / "boards").glob("*.md"))
    assert pages - found == {DOCS / "index.md"}
    plain = [e for e in entries if "*" not in e]
    assert len(set(plain)) == len(plain) and "*" not in entries  # a page has one place
    assert beside <= {(DOCS / f"{e}.md").resolve() for e in entries if "*" not in e}


def test_warnings_are_errors_and_ci_builds_the_site():
    script = (ROOT / ".ci" / "docs").read_text()
    assert "sphinx -W -n --keep-going" in script
    assert "docs/make.py --check" in script and "docs/reference.py --check" in script
    assert ".ci/docs" in (ROOT / ".ci" / "run").read_text()
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert [re.match(r"[\w-]+", name).group() for name in extras["docs"]] == ["sphinx", "myst-parser", "furo"]


@pytest.mark.slow
def test_the_site_is_built_and_a_broken_link_stops_it(tmp_path):
    """In a copy of the documents, with what `pip install -e '.[docs]'` brings."""
    import shutil
    import subprocess
    import sys

    pytest.importorskip("sphinx")
    for folder in ("docs", "leaderboard/boards", "leaderboard/site", "examples"):
        shutil.copytree(ROOT / folder, tmp_path / folder)
    for path in (*ROOT.glob("*.md"), ROOT / "LICENSE"):
        shutil.copy(path, tmp_path)
    for folder in ("core/contract", "tests", "suites"):
        (tmp_path / folder).mkdir(parents=True)

    def build() -> subprocess.CompletedProcess[str]:
        words = ["-W", "-n", "--keep-going", "-q", "-b", "dummy", "-c", "docs", ".", str(tmp_path / "out")]
        return subprocess.run([sys.executable, "-m", "sphinx", *words], cwd=tmp_path, capture_output=True, text=True)

    assert build().returncode == 0
    page = tmp_path / "docs" / "threats.md"
    gone = "nowhere"
    page.write_text(page.read_text() + f"\n[a]({gone}.md) [b](method.md#gone)\n")
    broken = build()
    assert broken.returncode != 0
    assert f"'{gone}.md'" in broken.stderr and "'gone'" in broken.stderr


def test_how_to_cite_is_complete_and_says_this_version():
    citation = YAML(typ="safe").load((ROOT / "CITATION.cff").read_text())
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert {"cff-version", "message", "title", "authors", "type", "version", "license"} <= set(citation)
    assert (citation["cff-version"], citation["type"]) == ("1.2.0", "software")
    assert (citation["version"], citation["license"]) == (project["version"], project["license"])
    assert all(author.get("name") for author in citation["authors"])


@pytest.mark.parametrize(("name", "parts"), [
    ("SECURITY.md", ("## What isolation promises", "## What it does not promise", "## Reporting")),
    ("CHANGELOG.md", ("## Unreleased", "### Added", "### Changed")),
    ("CONTRIBUTING.md", ("## Publish a method elsewhere", "## Add a method to this repository")),
])  # fmt: skip
def test_what_a_repository_has(name, parts):
    headings = re.findall(r"^#+ .*$", (ROOT / name).read_text(), re.MULTILINE)
    assert set(parts) <= set(headings)


def test_the_threat_models_name_every_view_and_level():
    from typing import get_args

    text = (DOCS / "threats.md").read_text()
    for word in (*get_args(View), *LEVELS):
        assert f"| `{word}` |" in text, word


def test_the_reference_names_the_phases_in_their_order_and_every_command():
    text = (DOCS / "reference" / "index.md").read_text()
    linked = re.findall(r"^\| \[(\w+)\]\(phases/", text, re.MULTILINE)
    assert linked == list(PHASES)
    for name in COMMANDS:
        assert f"| `fedbench {name}` |" in text


def test_what_is_written_for_shells_and_editors_are_commands_that_exist():
    text = (DOCS / "editor.md").read_text()
    shown = set(re.findall(r"^fedbench (\w+)", text, re.MULTILINE))
    assert shown == {"schema", "completion"}
    for shell in ("bash", "zsh", "fish"):
        assert f"fedbench completion {shell} > " in text
    assert "# yaml-language-server: $schema=suite.schema.json" in text
