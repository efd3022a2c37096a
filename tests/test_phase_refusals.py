"""A ``UserError`` of a phase is recorded like any other failure: with the plugin's name, the phase, the client and the round."""

from __future__ import annotations

import pytest
from fake_packages import install
from running import invoke, records, suite
from tiny import tiny_setup, train_all

from fedbench.core import Defense, UserError
from fedbench.core.federation.compose import composed
from fedbench.core.federation.guard import PhaseError

PLACES = {  # phase -> where it is refused: members are clients 1 and 2, in round 2 where there is one
    "begin": "before round 1", "prepare": "client 1, before round 1", "select": "client 1, round 2",
    "transform": "client 1, round 2", "loss": "client 1, round 2", "local_step": "client 1, round 2",
    "local_train": "client 1, round 2", "protect": "client 1, round 2", "coordinate": "round 2", "aggregate": "server, round 2",
    "after_round": "client 1, round 2", "report": "after the last round",
}  # fmt: skip


def refuser(phase, *messages):
    """A defense that refuses in one phase, from round 2 on, whatever it is asked for."""

    def refuse(self, *args):
        if getattr(args[-1], "round", 2) not in (0, 2):
            return getattr(Defense, phase)(self, *args)
        raise UserError(*messages)

    return type("Refuses", (Defense,), {phase: refuse})()


def refused(*defenses):
    training, _ = train_all(tiny_setup(composed(list(defenses)), (1, 2), rounds=2))
    training.facts()


@pytest.mark.parametrize("phase", PLACES)
def test_a_refusal_names_plugin_phase_client_and_round_once(phase):
    with pytest.raises(UserError) as error:
        refused(refuser(phase, "lower f: it removes all rows", "or add clients"))
    where = f"Refuses.{phase} ({PLACES[phase]}): "
    assert error.value.messages == (f"{where}lower f: it removes all rows", f"{where}or add clients")


@pytest.mark.parametrize("phase", ["loss", "protect", "coordinate", "aggregate"])
def test_one_of_a_list_that_refuses_is_named_and_the_list_is_not(phase):
    with pytest.raises(UserError) as error:
        refused(type("Other", (Defense,), {})(), refuser(phase, "not here"))
    assert error.value.messages == (f"Refuses.{phase} ({PLACES[phase]}): not here",)


def test_a_refusal_without_a_word_is_a_failure_with_a_place():
    with pytest.raises(PhaseError, match=r"^Refuses\.protect \(client 1, round 2\): UserError \(test_phase_refusals"):
        refused(refuser("protect", ""))


def test_check_says_in_training_what_it_says_at_planning():
    refusing = type("Refuses", (Defense,), {"check": lambda self, federation: (_ for _ in ()).throw(UserError("not here"))})
    with pytest.raises(UserError, match=r"^not here$"):
        refused(refusing())


def test_the_record_of_a_refused_run_says_who_refused_and_where(tmp_path, site):
    install(site, "refusing", """
        from fedbench.core import Component, Defense, UserError, hookimpl

        class Late(Defense):
            def protect(self, update, ctx):
                if ctx.client == 1 and ctx.round == 2:
                    raise UserError("it needs more samples of this class")
                return update

        @hookimpl
        def fedbench_defenses():
            yield Component("late", "refusing:Late", "refuses late")
    """)
    path = suite(tmp_path, coalitions=["pair"], defenses=["late"])
    invoke(path, "--results", tmp_path / "results", status=1)
    (record,) = (r for (defense, _, _), r in records(tmp_path / "results").items() if defense == "late")
    assert record["outcome"] == "failed"
    assert record["reason"] == "Late.protect (client 1, round 2): it needs more samples of this class"
