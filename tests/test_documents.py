"""README, documents and reference: links, commands and numbers in them are those of the code and
the committed boards.
"""

from __future__ import annotations

import importlib.util
import inspect
import json
import re
import shlex
import shutil
import subprocess
import tomllib
from pathlib import Path

import click
import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from ruamel.yaml import YAML

from fedbench.core.cli.main import cli, commands
from fedbench.core.cli.run import build_plan
from fedbench.core.contract.hooks import Hooks

pytestmark = pytest.mark.slow
ROOT = Path(__file__).parents[1]
DOCS, README = ROOT / "docs", (ROOT / "README.md").read_text()
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
SOURCE = PROJECT["urls"]["Source"]
DOCUMENTS = [*sorted(ROOT.glob("*.md")), *sorted(DOCS.rglob("*.md"))]
SOURCES = [
    path
    for folder in ("api", "core", "plugins", "leaderboard", "suites", "testing", "tests")
    for path in sorted((ROOT / folder).rglob("*"))
    if path.suffix in (".py", ".yaml", ".md", ".toml") and path != Path(__file__)
]
# written by commands
NAMES = {p.name for p in [*DOCUMENTS, *SOURCES]} | {
    "board.md",
    "full.md",
    "comment.md",
    "report.md",
}


def script(name, folder=DOCS):
    """A module of docs/, or of another folder."""
    spec = importlib.util.spec_from_file_location(name, folder / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


# --- links and paths ------------------------------------------------------------------------------


def anchors(text):
    """The anchors of a text's headings: lower case, punctuation dropped, hyphens for blanks."""
    prose = re.sub(r"^```.*?^```", "", text, flags=re.DOTALL | re.MULTILINE)
    titles = (
        re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", title).strip().lower()
        for title in re.findall(r"^#+ +(.*)$", prose, re.M)
    )
    return {re.sub(r"[^\w\- ]", "", title).replace(" ", "-") for title in titles}


def leads_nowhere(target, anchor):
    """Whether a file, or a section of it, is not there."""
    if anchor and target.is_file():
        return anchor not in anchors(target.read_text(encoding="utf-8"))
    return bool(anchor) or not target.exists()


def bad_mentions(text):
    """Documents named in a text that are not there."""
    paths = re.findall(r"(?<![\w/.-])(docs/[\w./-]*\w)(?:#([\w-]+))?", text)
    return [n for n, anchor in paths if leads_nowhere(ROOT / n, anchor)] + [
        n for n in re.findall(r"[\w-]+\.md\b", text) if n not in NAMES
    ]


def bad_links(text, folder):
    """Relative links, and files and folders in code marks, that lead nowhere; ``*`` stands for
    anything.
    """
    prose = re.sub(
        rf"^```.*?^```|`[^`\n]*`|{SOURCE}/(?:blob|raw)/main/",
        "",
        text,
        flags=re.DOTALL | re.MULTILINE,
    )
    links = re.findall(r"\]\(([^)\s]+)\)|^\[[^]]+\]: (\S+)$", prose, re.MULTILINE)
    links = [link for link in map("".join, links) if not re.match(r"[a-z]+:", link)]
    parts = [(link, *link.partition("#")[::2]) for link in links]
    found = [
        link
        for link, n, anchor in parts
        if (leads_nowhere(folder / n, anchor) if n else anchor not in anchors(text))
    ]
    paths = re.findall(r"`((?:core|plugins|leaderboard|suites|tests|\.ci)/[^`\s]*)`", text)
    found += [
        n
        for n in paths
        if not re.search(r"[<>{}$]|\.\.\.", n) and not any(ROOT.glob(n.rstrip("/")))
    ]
    return found + [n for n in re.findall(r"`(\w+\.py)`", text) if n not in NAMES]


def test_every_document_that_is_named_and_every_link_leads_somewhere():
    texts = {path: path.read_text(encoding="utf-8") for path in [*DOCUMENTS, *SOURCES]}
    found = {path: bad_mentions(text) for path, text in texts.items()}
    for path in DOCUMENTS:
        found[path] += bad_links(texts[path], path.parent)
    offenders = {str(path.relative_to(ROOT)): bad for path, bad in found.items() if bad}
    assert offenders == {}


def test_the_readme_of_an_index_page_has_whole_addresses_and_every_label_has_one():
    prose = re.sub(r"^```.*?^```|`[^`\n]*`", "", README, flags=re.DOTALL | re.MULTILINE)
    assert re.findall(r"\]\((?!https:)|^\[[^]]+\]: (?!https:)", prose, re.MULTILINE) == []
    labels = dict(re.findall(r"^\[([^]]+)\]: (\S+)$", prose, re.MULTILINE))
    assert {
        " ".join(label.split()) for label in re.findall(r"\[([^][]+)\](?![\[(:])", prose)
    } == set(labels)
    assert all(
        url.startswith(f"{SOURCE}/")
        for url in [*labels.values(), *PROJECT["urls"].values()]
        if url != SOURCE
    )


# --- commands -------------------------------------------------------------------------------------


def calls(path):
    """The arguments of each call of fedbench in a document's fenced blocks, or in a script."""
    text = re.sub(r"\\\n *", " ", path.read_text())
    if path.suffix == ".md":
        text = "\n".join(re.findall(r"^ *```\w*\n(.*?)^ *```", text, re.DOTALL | re.MULTILINE))
    text = re.sub(r' "\$\{.*?\}"', "", text)
    found = re.findall(
        r'^ *(?:run: )?\(?(?:"\$fedbench"|(?:\.venv/bin/)?fedbench) (.*)$', text, re.MULTILINE
    )
    return [shlex.split(re.split(r"\s{2,}| #| > | \|\| ", line)[0]) for line in found]


def problem(args):
    """Why the command line does not take these arguments; nothing is run."""
    with click.Context(cli) as context:
        try:
            cli.get_command(context, args[0]).make_context(args[0], list(args[1:]), parent=context)
        except (click.ClickException, AttributeError) as error:
            return str(error)
    return ""


def test_every_command_that_is_shown_exists_with_its_options():
    scripts = [
        *(ROOT / ".ci" / name for name in ("gate", "run", "examples")),
        ROOT / "examples" / "ci" / "fedbench-gate.yml",
    ]
    found = {
        path: calls(path) for path in [*DOCUMENTS, *(ROOT / "examples").rglob("*.md"), *scripts]
    }
    assert {"gate", "run", "examples", "fedbench-gate.yml"} <= {
        path.name for path, own in found.items() if own
    }
    bad = {
        (path.name, *args): why
        for path, own in found.items()
        for args in own
        if (why := problem(args))
    }
    assert bad == {}
    assert {args[0] for args in found[DOCS / "commands.md"]} == set(commands())
    assert problem(["compare", "a", "b", "--fail-off", "worse"]).startswith("No such option")


def test_the_image_runs_the_commands_of_the_readme():
    image = (ROOT / "examples" / "docker" / "Dockerfile").read_text()
    run, test = (
        re.search(rf"<!-- {name} -->\n```\n(.*)\n```", README)[1]
        for name in ("run-command", "test-command")
    )
    set_up, _, tests = test.rpartition(" && ")
    assert f"RUN {set_up}\n" in image
    assert f"CMD {json.dumps(shlex.split(run.rpartition('/bin/')[2]))}\n" in image
    assert (
        f"docker run fedbench {tests.removeprefix('.venv/bin/')}\n"
        in (ROOT / "examples" / "README.md").read_text()
    )
    copied = {
        name
        for names in re.findall(r"^COPY (.*) \S+$", image, re.MULTILINE)
        for name in names.split()
    }
    packages = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"][
        "package-dir"
    ].values()
    assert set(packages) <= copied and all((ROOT / name).exists() for name in copied)


# the package that a reader has just written
OF_THE_TEXT = {"$distribution", "fedbench-sign-update"}
# without an index
FOUND_BY_CI = {"fedbench-memory-top-k", "fedbench-merlin", "fedbench-control-charts"}


def installed_names(path):
    """Names of packages that the commands and requirements of a file give to pip; paths and
    computed names are none.
    """
    text = path.read_text()
    word = r"'[^']*'|[^\s'\",;`&|#()]+"
    words = re.findall(
        word, " ".join(re.findall(rf"pip (?:install|download)((?: +(?:{word}))+)", text))
    )
    if path.name.startswith("requirements"):
        words += re.sub(r"#.*", "", text).split()
    if path.name.startswith("pyproject.toml"):
        project = tomllib.loads(re.sub(r"^\$name|\$author_quoted", '""', text, flags=re.M))
        lists = [
            project["build-system"]["requires"],
            *project["project"].get("optional-dependencies", {}).values(),
        ]
        words += [
            word for one in [project["project"].get("dependencies", []), *lists] for word in one
        ]
    names = (
        re.match(r"\$?\w[\w.-]*(?=$|[\[<>=!~$ ])", w.strip("'")) for w in words if "/" not in w
    )
    return {name[0] for name in names if name and not name[0].endswith(".txt")}


def test_every_package_that_a_text_installs_is_ours_or_one_that_ours_requires():
    """Their authors are known; any other name could be registered by a stranger."""
    tracked = subprocess.run(
        ["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.split("\0")
    outside = re.compile(r"tests/(?!plugin_example/)|leaderboard/boards/|.*\.(png|npz)$|$")
    names = {name: installed_names(ROOT / name) for name in tracked if not outside.match(name)}
    known = OF_THE_TEXT | names["pyproject.toml"]
    names[".ci/examples"] -= FOUND_BY_CI
    assert {name: found - known for name, found in names.items() if found - known} == {}
    template = names["core/scaffold/templates/package/pyproject.toml.in"]
    assert template == {PROJECT["name"], "setuptools", "pytest", "ruff"}
    ours = (
        "docs/site.md",
        "examples/ci/fedbench-gate.yml",
        "examples/results-repository/requirements.txt",
    )
    assert [names[name] for name in ours] == 3 * [{PROJECT["name"]}]


def test_the_versions_of_python_are_those_that_ci_runs():
    minors = re.findall(r"Python :: 3\.(\d+)", " ".join(PROJECT["classifiers"]))
    assert f"for minor in {' '.join(minors)}; do" in (ROOT / ".ci" / "nightly").read_text()
    workflow = YAML(typ="safe").load(ROOT / ".github" / "workflows" / "ci.yml")
    versions = workflow["jobs"]["nightly"]["steps"][1]["with"]["python-version"].split()
    assert sorted(versions) == [f"3.{minor}" for minor in minors]
    assert (
        PROJECT["requires-python"] == f">=3.{minors[0]}"
        and f"Python 3.{minors[0]} to 3.{minors[-1]}," in README
    )


def test_the_locked_versions_are_in_the_ranges_of_the_requirements():
    lines = (ROOT / "tests" / "constraints.txt").read_text().splitlines()[1:]
    locked = {canonicalize_name(name): version for name, version in (x.split("==") for x in lines)}
    extras = PROJECT["optional-dependencies"]
    texts = [*PROJECT["dependencies"], *extras["html"], *extras["pandas"], *extras["test"][1:]]
    requirements = [Requirement(text) for text in texts]
    outside = [r for r in requirements if locked[canonicalize_name(r.name)] not in r.specifier]
    assert outside == []


def test_the_pages_name_every_dependency_and_the_size_of_the_main_job(tmp_path):
    asked = {re.match(r"[\w.-]+", text).group() for text in PROJECT["dependencies"]}
    page = (DOCS / "install.md").read_text()
    table = re.findall(r"^\| ([^|]+) \|", page.split("## Dependencies")[1], re.MULTILINE)
    assert asked - {name.strip() for row in table for name in re.split(r",|\(", row)} == set()
    jobs = build_plan("partial_defense", (), tmp_path, "cpu").jobs
    n_cells = sum(len(job.cells) for job in jobs)
    assert f"all ten seeds, {len(jobs)} federations and {n_cells:,} scores" in README


# --- the contract ---------------------------------------------------------------------------------


def test_the_page_of_plugins_has_every_hook_with_its_signature():
    hooks = {name: f for name, f in vars(Hooks).items() if not name.startswith("_")}
    signatures = {
        f"{name}({', '.join(list(inspect.signature(f).parameters)[1:])}) -> "
        f"{inspect.signature(f).return_annotation}"
        for name, f in hooks.items()
    }
    page = (DOCS / "plugins.md").read_text()
    assert set(re.findall(r"`(fedbench_\w+\([^`]*)`", page)) == signatures
    assert [
        name
        for name, f in hooks.items()
        if not re.fullmatch(r"[^\n]+\.", (f.__doc__ or "").strip())
    ] == []


# --- pages that are made of the code --------------------------------------------------------------


@pytest.fixture
def reference(tmp_path, monkeypatch):
    """``docs/reference.py`` on a copy of the pages."""
    monkeypatch.syspath_prepend(str(DOCS))
    module = script("reference")
    monkeypatch.setattr(module, "PAGES", shutil.copytree(module.PAGES, tmp_path / "reference"))
    monkeypatch.setattr("sys.argv", ["reference.py", "--check"])
    return module


def test_the_reference_is_made_of_the_code_and_can_be_made_anew(reference, capsys, monkeypatch):
    assert reference.main() == 0, capsys.readouterr().err
    page = reference.PAGES / "phases" / "loss.md"
    right = page.read_text()
    page.write_text(right.replace("exclusive", "every"))
    assert reference.main() == 1
    assert "phases/loss.md is not what the code says" in capsys.readouterr().err
    monkeypatch.setattr("sys.argv", ["reference.py"])
    assert reference.main() == 0
    assert page.read_text() == right


# --- numbers out of boards ------------------------------------------------------------------------

TABLE = {
    "title": "AUC by attack",
    "columns": ["#", "defense", "a", "b (finds nothing)", "accuracy (%)"],
    "rows": [
        ["1-2", "none (undefended)", "0.812 ± 0.015", "0.500 ± 0.000", "88.0 ± 1.0"],
        ["1-2", "mix_up", "0.100 [0.05, 0.30] turned", "n/a", "87.5"],
    ],
}
BOARD = {
    "rows": [{"better": []}],  # of today's rules
    "sections": [{"sentence": "rank correlation 0.80"}],
    "folds": [{"place": ["Setting iid", "Coalition pair, server view"], "blocks": [TABLE]}],
}
FROM = "<!-- from: demo | iid | pair | server | AUC by attack -->\n"


@pytest.fixture
def make(tmp_path, monkeypatch):
    """``docs/make.py`` with one made-up board."""
    monkeypatch.syspath_prepend(str(DOCS))
    module = script("make")
    module.BOARDS = tmp_path
    (tmp_path / "demo.json").write_text(json.dumps(BOARD))
    return module


@pytest.mark.parametrize(
    ("template", "text"),
    [
        ("{{demo | iid | pair | server | AUC by attack | none | a}}", ".812"),
        (
            FROM + "{{none | a | ±}} {{mix_up | a | ±}} {{mix_up | a}} {{none | accuracy}}",
            ".812 ± .015 .100 [0.05, 0.30] .100 88.0",
        ),
        (FROM + "<!-- holds: {{none | a}} > {{none | b}} -->\nkept", "kept"),
        ("{{said: demo | rank correlation ([\\d.]+)}}", "0.80"),
    ],
)
def test_numbers_of_a_document_come_from_the_board(make, template, text):
    assert make.rendered(template, "x.md.in") == text + "\n"


@pytest.mark.parametrize(
    ("template", "problem"),
    [
        (
            FROM + "{{none | c}}",
            "x.md.in:2: demo.json, AUC by attack has no column 'c'; it has #, defense, a, b, "
            "accuracy",
        ),
        (FROM + "{{mix_up | b}}", "'n/a' holds no number"),
        (FROM + "<!-- holds: {{none | a}} < {{none | b}} -->", "no longer true: .812 < .500"),
        (
            "{{verdict: demo | mixup-best}}",
            "demo.json has no verdict on 'mixup-best'; it has them on no claim",
        ),
        (
            "{{gone | iid | pair | server | AUC by attack | none | a}}",
            "there is no committed board gone.json; there are demo",
        ),
    ],
)
def test_a_mistake_in_a_template_is_named_with_file_and_line(make, template, problem):
    with pytest.raises(make.Mistake, match=re.escape(problem)) as error:
        make.rendered(template, "x.md.in")
    assert str(error.value).startswith("x.md.in:")


# --- simulation -----------------------------------------------------------------------------------


@pytest.mark.nightly
def test_the_table_of_known_truths_is_printed_by_its_command():
    """Two of its rows; another type of CPU may round the last digits differently."""
    page, found = (
        (DOCS / "method.md").read_text().splitlines(),
        script("tf01", ROOT / "tests" / "benchmarks"),
    )
    for design in ((5, 2, 2000), (5, 2, 500)):
        line = found.row(design, "normal", 0.005, found.REPETITIONS)
        *names, true, mean, _, covered, each = line.strip("| ").split(" | ")
        (old,) = (
            row.strip("| ").split(" | ")
            for row in page
            if row.startswith(f"| {' | '.join(names)} |")
        )
        old = [old[-5], old[-4], *old[-2:]]
        assert [float(x) for x in (true, mean, covered, each)] == pytest.approx(
            list(map(float, old)), rel=0.02, abs=1
        )
