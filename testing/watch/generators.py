"""Where random numbers come from: the global generators, and generators that nobody seeded."""

from __future__ import annotations

import os
import random
import secrets
import sys
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import Any

import numpy as np
import torch

from fedbench.core.federation.local import LocalTrainer
from fedbench.testing.watch.own import Own, place
from fedbench.testing.watch.prints import generator_state


def global_state() -> dict[str, str]:
    """Where Python's, numpy's and torch's global generators stand."""
    return {
        "Python's random": repr(hash(random.getstate())),
        "numpy.random": repr([part.tobytes() if isinstance(part, np.ndarray) else part for part in np.random.get_state()]),
        "torch's default generator": repr(hash(torch.random.default_generator.get_state().numpy().tobytes())),
    }


def seed_globals(seed: int) -> None:
    """Put all three somewhere."""
    random.seed(seed)
    np.random.seed(seed)
    torch.random.default_generator.manual_seed(seed)


@contextmanager
def global_generators_kept() -> Iterator[None]:
    """As they were, afterwards."""
    states = random.getstate(), np.random.get_state(), torch.random.default_generator.get_state()
    try:
        yield
    finally:
        random.setstate(states[0])
        np.random.set_state(states[1])
        torch.random.default_generator.set_state(states[2])


@contextmanager
def engine_leaves_torch_alone() -> Iterator[None]:
    """The engine keys torch's default generator for modules that draw from it. Those here do not: so whoever moves it is the
    component."""
    keyed = LocalTrainer.key_module
    LocalTrainer.key_module = lambda self, round, client, purpose="module": None  # type: ignore[method-assign]
    try:
        yield
    finally:
        LocalTrainer.key_module = keyed  # type: ignore[method-assign]


_TORCH_DEFAULT = torch.Generator().initial_seed()
_NAME = "uuid.uuid4()"


class Unseeded:
    """Collects where a component's code makes a generator without a seed, or asks the system for chance."""

    def __init__(self, own: Own) -> None:
        self._own, self.found = own, dict[str, None]()
        self._made: list[tuple[torch.Generator, str]] = []

    def note(self, what: str) -> None:
        """If its own code is at work."""
        if frame := self._own.frame():
            self.found.setdefault(f"{what} [{place(frame)}]")

    @contextmanager
    def watching(self) -> Iterator[None]:
        """While the component is at work."""
        with replaced(self._stand_ins(), self._own):
            yield
        for generator, where in self._made:
            if generator.initial_seed() == _TORCH_DEFAULT:
                self.found.setdefault(f"torch.Generator() without manual_seed(...) [{where}]")

    def _stand_ins(self) -> list[tuple[Any, str, Any]]:
        rng = np.random
        made = self._function(rng.default_rng, "numpy.random.default_rng()")
        places: list[tuple[Any, str, Any]] = [(rng, "default_rng", made)]
        places += [
            (rng, n, self._class(getattr(rng, n), f"numpy.random.{n}()"))
            for n in ("RandomState", "SeedSequence", "Philox", "PCG64", "PCG64DXSM", "MT19937", "SFC64")
        ]
        places += [(random, "Random", self._class(random.Random, "random.Random()"))]
        places += [(torch, "Generator", self._torch_generator())]
        places += [(uuid, "uuid4", self._drawn(uuid.uuid4, _NAME)), (os, "urandom", self._drawn(os.urandom, "os.urandom()"))]
        entropy = [(torch, "seed"), (secrets, "randbits"), (secrets, "token_bytes")]
        places += [(home, n, self._entropy(getattr(home, n), f"{home.__name__}.{n}()")) for home, n in entropy]
        return [*places, (random, "SystemRandom", self._entropy(random.SystemRandom, "random.SystemRandom()"))]

    def _function(self, made: Callable[..., Any], what: str) -> Callable[..., Any]:
        def stand_in(seed: Any = None, *args: Any, **more: Any) -> Any:
            if seed is None and not more:
                self.note(what)
            return made(seed, *args, **more)

        return stand_in

    def _class(self, cls: type, what: str) -> type:
        note = self.note

        class Kind(type):
            def __instancecheck__(self, instance: Any) -> bool:  # what it makes is the original's: libraries ask of what kind
                return isinstance(instance, cls)

        class StandIn(cls, metaclass=Kind):  # type: ignore[misc, valid-type]
            def __new__(new, *args: Any, **more: Any) -> Any:
                if (not args or args[0] is None) and all(v is None for v in more.values()):
                    note(what)
                return cls(*args, **more)

        return StandIn

    def _entropy(self, made: Callable[..., Any], what: str) -> Callable[..., Any]:
        def stand_in(*args: Any, **more: Any) -> Any:
            self.note(what)
            return made(*args, **more)

        return stand_in

    def _drawn(self, made: Callable[..., Any], what: str) -> Callable[..., Any]:
        """Of system randomness that also makes names: a library may name its own things (scikit-learn does so with every fit,
        joblib with every loop), so a name counts where the component's own code asks for it."""

        def stand_in(*args: Any, **more: Any) -> Any:
            frame: FrameType = sys._getframe(1)
            names = what == _NAME
            home = str(frame.f_globals.get("__name__"))
            while frame.f_back is not None and home in (uuid.__name__, __name__):
                names, frame = True, frame.f_back
                home = str(frame.f_globals.get("__name__"))
            if not names or self._own.has(home):
                self.note(what)
            return made(*args, **more)

        return stand_in

    def _torch_generator(self) -> Callable[..., Any]:
        note, own, all_made = self.note, self._own, self._made

        class StandIn(torch.Generator):
            """``torch.Generator()`` has one seed for everybody until it is given another."""

            def __init__(self, *args: Any, **more: Any) -> None:
                if frame := own.frame():
                    all_made.append((self, place(frame)))

            def seed(self) -> int:
                note("torch.Generator().seed()")
                return int(super().seed())

        return StandIn


@contextmanager
def replaced(places: list[tuple[Any, str, Any]], own: Own) -> Iterator[None]:
    """``home.name`` is the stand-in, also where the component's modules hold the original under a name of their own."""
    undo: list[tuple[Any, str, Any]] = []
    try:
        for home, name, stand_in in places:
            original = getattr(home, name)
            for module in (home, *own.modules()):
                for known, value in list(vars(module).items()):
                    if value is original and (module is not home or known == name):
                        undo.append((module, known, original))
                        setattr(module, known, stand_in)
        yield
    finally:
        for module, known, original in reversed(undo):
            setattr(module, known, original)


def module_generators(own: Own, cls: type) -> dict[str, str]:
    """Name -> state of the generators that live in the component's modules, or on its class: they outlive a run."""
    found = {}
    for home in (*own.modules(), *(c for c in cls.__mro__ if own.has(c.__module__))):
        for name, value in list(vars(home).items()):
            with suppress(ReferenceError):
                if not isinstance(value, type) and (state := generator_state(value)) is not None:
                    found[f"{getattr(home, '__name__', '?')}.{name}"] = state
    return found
