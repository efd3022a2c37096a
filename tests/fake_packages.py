"""Installed packages without pip: a module and a .dist-info on a path; and what such a module may
say.
"""

from __future__ import annotations

import textwrap
from pathlib import Path

ANNOUNCE = """
from fedbench.core import Component, hookimpl

@hookimpl
def fedbench_defenses():
    yield Component({name!r}, {target!r}, "does nothing")
"""
DEFENSE = """
from fedbench.core import Defense

class Shield(Defense):
    pass
"""

# to be installed as the module `waiting`
WAITING = '''
    import os, time
    from fedbench.core import Component, Defense, hookimpl

    class Waits(Defense):
        """As long as there is a file `wait` where the command was called; it makes one named
        `waiting` there.
        """
        def protect(self, update, ctx):
            open("waiting", "w").close()
            while os.path.exists("wait"):
                time.sleep(0.01)
            return update * 0.5

    @hookimpl
    def fedbench_defenses():
        yield Component("waits", "waiting:Waits", "waits")
'''

# (source, words of the reason)
BROKEN = {
    "import error": (
        "import no_such_module_at_all",
        "cannot import 'broken': ModuleNotFoundError: No module named 'no_such_module_at_all' (",
    ),
    "a name of another version": (
        "from fedbench.core.toolkit import check_size",
        "(broken.py:1); this fedbench has no such name: see 'Plugins written for' in",
    ),
    "syntax": ("def f(:\n    pass", "cannot import 'broken': SyntaxError: "),
    "exit": ("import sys\nsys.exit(3)", "cannot import 'broken': it called sys.exit(3) ("),
    "hook raises": (
        """
        from fedbench.core import hookimpl
        @hookimpl
        def fedbench_defenses():
            raise KeyError("sigma")
        """,
        "fedbench_defenses failed: KeyError: 'sigma' (",
    ),
    "hook raises on the way": (
        """
        from fedbench.core import Component, hookimpl
        @hookimpl
        def fedbench_defenses():
            yield Component("one", "a:B", "x")
            raise ValueError("two")
        """,
        "fedbench_defenses failed: ValueError: two (",
    ),
    "hook exits": (
        """
        from fedbench.core import hookimpl
        @hookimpl
        def fedbench_defenses():
            yield exit(4)
        """,
        "fedbench_defenses failed: it called sys.exit(4)",
    ),
    "returns None": (
        """
        from fedbench.core import hookimpl
        @hookimpl
        def fedbench_attacks():
            pass
        """,
        "fedbench_attacks failed: TypeError: it returned None, expected an iterable of Component "
        "(use yield)",
    ),
    "returns a number": (
        """
        from fedbench.core import hookimpl
        @hookimpl
        def fedbench_attacks():
            return 7
        """,
        "fedbench_attacks failed: TypeError: 'int' object is not iterable",
    ),
    "garbage": (
        """
        from fedbench.core import hookimpl
        @hookimpl
        def fedbench_attacks():
            yield "loss-series"
        """,
        "fedbench_attacks: yielded str 'loss-series', expected fedbench.core.Component",
    ),
    "name": (
        """
        from fedbench.core import Component, hookimpl
        @hookimpl
        def fedbench_attacks():
            yield Component("My_Attack", "a:B", "x")
        """,
        "the name 'My_Attack' is not kebab-case (lower-case letters, digits and single dashes)",
    ),
    "target": (
        """
        from fedbench.core import Component, hookimpl
        @hookimpl
        def fedbench_attacks():
            yield Component("mine", "a.B", "x")
        """,
        "the target 'a.B' of 'mine' has not the form 'package.module:Class'",
    ),
    "summary": (
        """
        from fedbench.core import Component, hookimpl
        @hookimpl
        def fedbench_attacks():
            yield Component("mine", "a:B", "")
        """,
        "the summary of 'mine' must not be empty",
    ),
    "misspelt": (
        """
        from fedbench.core import hookimpl
        @hookimpl
        def fedbench_defences():
            return []
        """,
        "unknown hook 'fedbench_defences' - did you mean 'fedbench_defenses'?",
    ),
    "unmarked": (
        "def fedbench_attacks():\n    return []",
        "the function 'fedbench_attacks' is not marked @hookimpl, so it announces nothing",
    ),
    "signature": (
        """
        from fedbench.core import hookimpl
        @hookimpl
        def fedbench_attacks(config):
            return []
        """,
        "fedbench_attacks(config): wrong signature, the hooks of fedbench take no arguments",
    ),
    "nothing": (
        "x = 1",
        "announces nothing: no function is marked @hookimpl; the hooks are fedbench_defenses, ",
    ),
}


def install(
    folder: Path,
    module: str,
    source: str,
    version: str = "1.0",
    *,
    distribution: str | None = None,
    entry: str | None = None,
) -> Path:
    """Write ``module``.py and the .dist-info of its distribution, with one fedbench entry point,
    into ``folder``; put that on sys.path. Distribution and entry point are called as the module,
    unless given.
    """
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{module}.py").write_text(textwrap.dedent(source))
    described(folder, distribution or module, module, version, entry)
    return folder


def described(
    folder: Path, name: str, module: str, version: str = "1.0", entry: str | None = None
) -> None:
    """The .dist-info alone, of a ``module`` that lies in ``folder``."""
    info = folder / f"{name.replace('-', '_')}-{version}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    (info / "entry_points.txt").write_text(f"[fedbench]\n{entry or module} = {module}\n")
