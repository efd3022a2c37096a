from fedbench.core import Attack, Component, Defense, hookimpl


def open_all():
    return [open("/dev/null") for _ in range(10**6)]


class Leaky(Defense):
    def protect(self, update, ctx):
        open_all()


class LeakyAttack(Attack):
    needs = frozenset({"loss"})

    def score(self, observations, audit):
        open_all()


@hookimpl
def fedbench_defenses():
    yield Component("leaky", "leaks:Leaky", "opens and never closes")


@hookimpl
def fedbench_attacks():
    yield Component("leaky-attack", "leaks:LeakyAttack", "opens and never closes")
