"""`fedbench new`: names, refusals, a package that is written whole or not at all, and that works as
written.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
from zipfile import ZipFile

import pytest
from click.testing import CliRunner
from fake_packages import ANNOUNCE, install
from hypothesis import example, given, settings
from hypothesis import strategies as st
from public_names import PUBLIC, private_imports
from running import records

from fedbench.core import UserError
from fedbench.core.cli.main import cli
from fedbench.core.scaffold import KINDS, names_of, package_files


def new(*args, status=0):
    """The output of one call in this process."""
    result = CliRunner().invoke(cli, ["new", *map(str, args)], prog_name="fedbench")
    assert isinstance(result.exception, SystemExit | None), result.exception
    assert result.exit_code == status, result.output
    return result.stderr if status else result.stdout


def everything(folder):
    """Path -> text of all files below a folder."""
    return {str(p.relative_to(folder)): p.read_text() for p in folder.rglob("*") if p.is_file()}


# --- names ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (
            "My Defense!",
            "'My Defense!' is not a valid name for a defense"
            ": expected 2 to 30 letters, digits and single dashes, a letter first,"
            " e.g. 'my-defense'",
        ),
        ("a" * 200, "aaa…' is not a valid name for a defense"),
        ("../up", "e.g. 'up'"),
        (
            "class",
            "'class' is not a valid name for a defense: it is a word of Python; try 'my-class'",
        ),
        ("fedbench-shield", "leave out 'fedbench-', the package gets it by itself"),
    ],
)
def test_a_bad_name_is_refused_with_a_good_one(tmp_path, given, words):
    assert words in new("defense", given, "--into", tmp_path, status=2)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("kind", "name", "who"),
    [
        ("defense", "grad-noise", "there is the defense 'grad-noise' (fedbench-privacy "),
        ("model", "shield", "there is the defense 'shield' (other-dist 1.0)"),
        ("model", "armour", "a package 'fedbench_armour' 1.0 is installed already"),
        ("defence", "any", "'defence' is not one of 'defense', 'attack'"),
    ],
)
def test_a_name_that_is_taken_and_an_unknown_kind_are_refused(site, tmp_path, kind, name, who):
    install(
        site,
        "one_plugin",
        ANNOUNCE.format(name="shield", target="a:Shield"),
        distribution="other-dist",
    )
    install(
        site,
        "two_plugin",
        ANNOUNCE.format(name="plate", target="a:Plate"),
        distribution="fedbench_armour",
    )
    (tmp_path / "into").mkdir()
    assert who in new(kind, name, "--into", tmp_path / "into", status=2)
    assert list((tmp_path / "into").iterdir()) == []


@example("model", "m" * 30)
@given(
    st.sampled_from(sorted(KINDS)),
    st.from_regex(r"[a-z][a-z0-9]*(-[a-z0-9]+){0,3}", fullmatch=True),
)
@settings(max_examples=20)
def test_an_accepted_name_gives_modules_that_compile_and_lines_that_fit(kind, name):
    try:
        names = names_of(kind, name)
    except UserError as refused:
        assert str(refused)
        return
    written = package_files(names, 'Jo "the \\ cat" Ünal', "0.3.1")
    for path, text in written.items():
        if path.endswith(".py"):
            compile(text, path, "exec")
            assert max(map(len, text.splitlines())) <= 130, path
    project = tomllib.loads(written["pyproject.toml"])["project"]
    assert project["authors"] == [{"name": 'Jo "the \\ cat" Ünal'}] and project["dependencies"] == [
        "fedbench-privacy>=0.3,<1"
    ]
    assert project["entry-points"]["fedbench"] == {names.name: names.module}
    assert f"src/{names.module}/{names.method}.py" in written


# --- folders ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "make",
    [
        lambda target: (target.mkdir(), (target / "README.md").write_text("mine")),
        lambda target: target.symlink_to("nowhere"),
    ],
    ids=["a full folder", "a link to nothing"],
)
def test_an_existing_folder_is_not_touched(tmp_path, make):
    target = tmp_path / "fedbench-shield"
    make(target)
    before = everything(tmp_path), os.lstat(target)
    assert f"{target} exists: nothing was written" in new(
        "defense", "shield", "--into", tmp_path, status=2
    )
    assert (everything(tmp_path), os.lstat(target)) == before and list(tmp_path.iterdir()) == [
        target
    ]


@pytest.mark.parametrize("folder", ["/no/such/folder", "/proc"])
def test_a_folder_that_cannot_be_used_is_refused(folder):
    assert f"{folder}/fedbench-shield: " in new("defense", "shield", "--into", folder, status=2)


def test_it_says_what_it_wrote_and_what_to_type_next(tmp_path, monkeypatch):
    (tmp_path / ".gitconfig").write_text("[user]\n\tname = Jo Doe\n")
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", str(tmp_path / ".gitconfig"))
    monkeypatch.chdir(tmp_path)
    text, folder = new("defense", "shield"), tmp_path / "fedbench-shield"
    shown, _, rest = text.partition("next:\n")
    assert [line.strip() for line in shown.splitlines()[1:]] == sorted(everything(folder))
    assert "cd fedbench-shield\n" in rest
    assert (
        "Jo Doe" in (folder / "LICENSE").read_text()
        and '{ name = "Jo Doe" }' in (folder / "pyproject.toml").read_text()
    )


# --- what it writes works as written --------------------------------------------------------------


def call(*words, cwd, site):
    """The output of a Python module as a command, in the package's folder, with the packages of
    ``site``.
    """
    env = {**os.environ, "PYTHONPATH": str(site), "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run(
        [sys.executable, "-m", *map(str, words)],
        cwd=cwd,
        env=env,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_packages_of_every_kind_use_the_public_contract_alone():
    private = {}
    for kind in KINDS:
        names = names_of(kind, "shield")
        files = package_files(names, "Jo Doe", "0.1.0")
        found = {
            path: private_imports(text, names.module)
            for path, text in files.items()
            if path.endswith(".py")
        }
        private |= {(kind, path): imports for path, imports in found.items() if imports}
        assert len(found) == 4 and files["suites/shield.yaml"].startswith(
            "# yaml-language-server: $schema=suite.schema.json\n"
        )
        for module, listed in re.findall(
            r"``(fedbench[\w.]*)``: ((?:\w+, )*\w+)", files["src/fedbench_shield/shield.py"]
        ):
            assert set(listed.split(", ")) <= set(PUBLIC[module])
    assert private == {}


@pytest.mark.slow
def test_a_wheel_holds_data_files_beside_the_modules(tmp_path):
    new("dataset", "rings", "--into", tmp_path)
    folder = tmp_path / "fedbench-rings"
    given = {"points.npz", "data/a.csv", "data/deep/b", "__pycache__/rings.cpython-311.pyc"}
    for name in given:
        (folder / "src/fedbench_rings" / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / "src/fedbench_rings" / name).write_text("x")
    build = [
        sys.executable,
        "-m",
        "pip",
        "wheel",
        "-q",
        "--no-deps",
        "--no-build-isolation",
        "-w",
        tmp_path,
        folder,
    ]
    subprocess.run(build, check=True)
    (wheel,) = tmp_path.glob("*.whl")
    held = {
        n.partition("/")[2] for n in ZipFile(wheel).namelist() if n.startswith("fedbench_rings/")
    }
    assert held == {"__init__.py", "rings.py", "points.npz", "data/a.csv", "data/deep/b"}


@pytest.mark.slow
@pytest.mark.nightly
@pytest.mark.parametrize("kind", KINDS)
def test_installed_by_pip_it_passes_its_tests_and_gets_its_place_on_a_board(kind, tmp_path):
    new(kind, f"new-{kind}", "--into", tmp_path)
    folder, site = tmp_path / f"fedbench-new-{kind}", tmp_path / "site"
    subprocess.run(
        [
            sys.executable,
            "-m",
            "pip",
            "install",
            "-q",
            "--no-deps",
            "--target",
            str(site),
            str(folder),
        ],
        check=True,
        text=True,
    )
    call("ruff", "check", "--no-cache", ".", cwd=folder, site=site)
    assert " passed" in call("pytest", "-q", "-p", "no:cacheprovider", cwd=folder, site=site)
    main = "fedbench.core.cli.main"
    assert "| passed |" in call(main, "check", f"new-{kind}", cwd=folder, site=site)
    call(
        main,
        "run",
        f"suites/new-{kind}.yaml",
        "--results",
        tmp_path / "results",
        cwd=folder,
        site=site,
    )
    assert {record["outcome"] for record in records(tmp_path / "results").values()} == {"ok"}
    assert f"new-{kind}" in (tmp_path / "results" / "leaderboard" / "board.md").read_text()
