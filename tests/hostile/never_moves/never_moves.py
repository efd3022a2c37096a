import time

from fedbench.core import Attack, Component, Defense, hookimpl


class Sleeps(Defense):
    def protect(self, update, ctx):
        time.sleep(3600)


class Spins(Attack):
    needs = frozenset({"loss"})

    def score(self, observations, audit):
        while True:
            pass


@hookimpl
def fedbench_defenses():
    yield Component("sleeps", "never_moves:Sleeps", "waits for nothing")


@hookimpl
def fedbench_attacks():
    yield Component("spins", "never_moves:Spins", "works for nothing")
