"""Digests of source code: which files they cover, of installed packages, of trees under work and of
fedbench itself.
"""

from __future__ import annotations

import sys

import pytest
from fake_packages import ANNOUNCE

from fedbench.core import UserError
from fedbench.core.contract.hooks import DISTRIBUTION
from fedbench.core.registry import digest
from fedbench.core.registry.components import Registry
from fedbench.core.registry.use import UseMaker

NAME, MODULE, INFO = "many-files", "many_files.defense", "many_files-1.0.dist-info"
PACKAGE = {
    "many_files/__init__.py": ANNOUNCE.format(name="shield", target="many_files.defense:Shield"),
    "many_files/defense.py": "raise RuntimeError('a digest imports nothing')\n",
    "many_files/deep/__init__.py": "",
    "many_files/deep/more.py": "x = 1\n",
    "many_files/data/numbers.json": "[1]",
    "many_files_helper.py": "HELP = 1\n",
}


def write(folder, files):
    """Texts by path."""
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)


def described(site, recorded, **more):
    """The .dist-info, with a RECORD of these files."""
    files = {
        "METADATA": f"Metadata-Version: 2.1\nName: {NAME}\nVersion: 1.0\n",
        "entry_points.txt": "[fedbench]\nmany = many_files\n",
        "INSTALLER": "pip\n",
        **more,
    }
    if recorded is not None:
        files["RECORD"] = "".join(
            f"{name},,\n"
            for name in [*recorded, *(f"{INFO}/{name}" for name in (*files, "RECORD"))]
        )
    write(site / INFO, files)


def wheel(site):
    """Installed from a wheel; the folder of its code."""
    write(site, {**PACKAGE, "many_files/__pycache__/defense.cpython-311.pyc": "x"})
    described(site, [*PACKAGE, "many_files/__pycache__/defense.cpython-311.pyc", "../bin/many"])
    return site


def editable(site):
    """A tree that is put on the path."""
    tree = site.parent / "project"
    write(tree / "src", PACKAGE)
    write(tree, {"pyproject.toml": "", "README.md": "Read me."})
    write(site, {"_many_files.pth": f"{tree / 'src'}\n"})
    described(site, ["_many_files.pth"], **{"top_level.txt": "many_files\nmany_files_helper\n"})
    return tree / "src"


def bare(site):
    """No RECORD: what ``top_level.txt`` names."""
    write(site, PACKAGE)
    described(site, None, **{"top_level.txt": "many_files\nmany_files_helper\n"})
    return site


@pytest.fixture(params=(wheel, editable, bare), ids=lambda layout: layout.__name__)
def code(request, site, monkeypatch):
    """The folder of the package's code, in every way to install it."""
    folder = request.param(site)
    # what Python does with a .pth
    monkeypatch.setattr(sys, "path", [*sys.path, *([] if folder == site else [str(folder)])])
    return folder


def now():
    """The digest of the component."""
    return digest.source_digest(MODULE, NAME)


def test_every_file_of_the_package_counts_and_no_other(code, site):
    first, seen = now(), {}
    for name in PACKAGE:
        text = (code / name).read_text()
        (code / name).write_text(text + " ")
        seen[name] = now()
        (code / name).write_text(text)
    assert first not in seen.values() and len(set(seen.values())) == len(seen) and now() == first
    write(
        code,
        {
            "many_files/__pycache__/x.pyc": "x",
            "many_files/.cache/x.json": "x",
            "many_files/results/tiny/fedbench.json": "{}",
            "many_files/results/tiny/records/a.json": "{}",
            ".venv/pyvenv.cfg": "",
            ".venv/lib/x.py": "x = 1",
            ".notes": "New.",
        },
    )
    write(site / INFO, {"INSTALLER": "uv\n", "REQUESTED": ""})
    assert now() == first


def test_a_folder_of_data_alone_counts_beside_the_modules(site):
    data = {"many_files_data/deep/numbers.json": "[1]"}
    write(site, PACKAGE | data)
    described(site, [*PACKAGE, *data])
    first = now()
    write(site, {"many_files_data/deep/numbers.json": "[2]"})
    assert now() != first


def test_a_use_names_the_digest_of_the_package_that_announced_it(site):
    wheel(site)
    found = Registry.discover().get("defense", "shield")
    before = UseMaker()(found, {}, "x").digest
    assert before == now()
    (site / "many_files" / "data" / "numbers.json").write_text("[2]")
    assert UseMaker()(found, {}, "x").digest == now() != before
    (site / "elsewhere.py").write_text("x = 1\n")  # a module of another package counts beside it
    first = digest.source_digest("elsewhere", NAME)
    (site / "many_files_helper.py").write_text("HELP = 2\n")
    second = digest.source_digest("elsewhere", NAME)
    (site / "elsewhere.py").write_text("x = 2\n")
    assert (
        len(
            {
                first,
                second,
                digest.source_digest("elsewhere", NAME),
                digest.source_digest("elsewhere"),
            }
        )
        == 4
    )


def test_a_built_in_methods_digest_follows_its_imports_alone(site, monkeypatch):
    plugins = site / "plugins"
    write(
        plugins / "defenses",
        {name: "x = 1\n" for name in ("__init__.py", "deep.py", "other.py")}
        | {
            "one.py": "import torch\nfrom fedbench.core import Defense\nfrom "
            "fedbench.plugins.defenses.shared import help_one\n",
            "shared.py": "def help_one():\n    from . import deep\n",
        },
    )
    monkeypatch.setattr(
        digest, "_folder", lambda part: plugins if part == "fedbench.plugins" else None
    )
    seen = [digest.source_digest("fedbench.plugins.defenses.one")]
    for name in ("__init__", "other", "deep", "shared"):
        write(plugins / "defenses", {f"{name}.py": "x = 2\n"})
        seen.append(digest.source_digest("fedbench.plugins.defenses.one"))
    assert seen[0] == seen[1] == seen[2] and len(set(seen[2:])) == 3


def test_built_in_digests_differ_and_a_missing_module_is_an_error(registry):
    targets = [c.component.target.split(":")[0] for c in registry.components("defense")]
    assert len({digest.source_digest(t, DISTRIBUTION) for t in targets}) == len(set(targets))
    for name in ("fedbench.plugins.defenses.no_such", "no_such_package.x"):
        with pytest.raises(UserError, match=f"no source file of the module '{name}' was found"):
            digest.source_digest(name)


def test_the_engine_digest_covers_what_can_change_a_score(tmp_path, monkeypatch):
    core = tmp_path / "core"
    files = [name if name.endswith(".py") else f"{name}/x.py" for name in (*digest.ENGINE, "cli")]
    write(core, dict.fromkeys(files, "x = 1\n"))
    monkeypatch.setattr(digest, "__file__", str(core / "registry" / "digest.py"))
    seen = [digest.engine_digest()]
    for file in files:
        write(core, {file: "x = 2\n"})
        seen.append(digest.engine_digest())
    assert len(set(seen)) == len(files) and seen[-1] == seen[-2]
