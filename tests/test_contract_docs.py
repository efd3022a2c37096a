"""The contract is documented where it is declared, and the README says the same.

A hook is documented in the README by its signature in code marks: `fedbench_defenses() -> Iterable[Component]`.
"""

import inspect
import re
from importlib import import_module
from pathlib import Path

import pytest

import fedbench.core
from fedbench.core.contract.defense import Defense
from fedbench.core.contract.hooks import Hooks
from fedbench.core.registry.kinds import BASES, HOOKS

README = Path(__file__).parent.parent / "README.md"
SIGNATURES = {
    name: f"{name}({', '.join(list(inspect.signature(f).parameters)[1:])}) -> {inspect.signature(f).return_annotation}"
    for name, f in vars(Hooks).items()
    if not name.startswith("_")
}


def undocumented(text: str) -> set[str]:
    """Hooks whose exact signature the text does not hold."""
    return {name for name, signature in SIGNATURES.items() if f"`{signature}`" not in text}


def misdocumented(text: str) -> set[str]:
    """Signatures in the text that no hook has: stale, misspelt, or with other arguments."""
    return set(re.findall(r"`(fedbench_\w+\([^`]*)`", text)) - set(SIGNATURES.values())


def test_the_rule_itself_can_fail():
    right = "\n".join(f"* `{signature}`: ..." for signature in SIGNATURES.values())
    assert not undocumented(right) and not misdocumented(right)
    assert undocumented(right.replace("_attacks()", "_attacks(config)")) == {"fedbench_attacks"}
    assert misdocumented("`fedbench_attacks(config) -> Iterable[Component]`, `fedbench_attack()`") == {
        "fedbench_attacks(config) -> Iterable[Component]", "fedbench_attack()",
    }  # fmt: skip


def test_the_readme_documents_every_hook_with_its_signature():
    text = README.read_text(encoding="utf-8")
    assert undocumented(text) == set()
    assert misdocumented(text) == set()


def test_every_hook_has_one_line_of_documentation():
    for name in SIGNATURES:
        doc = getattr(Hooks, name).__doc__
        assert doc and doc.strip().endswith(".") and "\n" not in doc.strip(), name


def test_every_hook_has_a_kind_and_every_kind_a_base_class():
    assert set(HOOKS.values()) == set(SIGNATURES)
    for module, name in BASES.values():
        assert getattr(import_module(module), name) is getattr(fedbench.core, name)


def test_every_public_name_is_documented():
    for name in fedbench.core.__all__:
        public = getattr(fedbench.core, name)
        if callable(public) and name != "hookimpl":
            assert inspect.getdoc(public), name


@pytest.mark.parametrize("base", [getattr(fedbench.core, name) for _, name in BASES.values()], ids=lambda b: b.__name__)
def test_every_method_of_a_base_class_is_documented(base):
    methods = {n: f for n, f in vars(base).items() if inspect.isfunction(f) and not n.startswith("_")}
    assert methods
    for name, function in methods.items():
        assert function.__doc__, f"{base.__name__}.{name}"


def test_every_phase_has_typed_arguments():
    for name, function in vars(Defense).items():
        if inspect.isfunction(function) and not name.startswith("_") and name not in ("check", "remarks"):  # asked when planning
            parameters = list(inspect.signature(function).parameters.values())[1:]
            assert parameters[-1].name == "ctx"
            assert all(p.annotation is not inspect.Parameter.empty for p in parameters), name
