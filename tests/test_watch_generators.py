"""What counts as a generator that nobody seeded: what the component asks for, not how a library names its own things."""

from __future__ import annotations

import os
import sys
import types
import uuid

import numpy as np
import pytest
from sklearn.utils import check_random_state

from fedbench.testing.watch.generators import Unseeded
from fedbench.testing.watch.own import Own


def written(name: str, source: str) -> types.ModuleType:
    """A module of that name, imported."""
    module = sys.modules[name] = types.ModuleType(name)
    exec(source, module.__dict__)
    return module


@pytest.fixture
def mine():
    """A component's module and a library that it calls."""
    library = written("some_library", "import os, uuid\nfrom uuid import uuid4\ndef named(): return uuid.uuid4(), uuid4()\n"
                                      "def drawn(): return os.urandom(4)")  # fmt: skip
    mine = written("mine", "import os, uuid, some_library\nclass C: pass\ndef own_name(): return uuid.uuid4()\n"
                           "def own_bytes(): return os.urandom(4)\ndef named(): return some_library.named()\n"
                           "def drawn(): return some_library.drawn()")  # fmt: skip
    yield mine
    del sys.modules[library.__name__], sys.modules["mine"]


def found(mine: types.ModuleType, function: str) -> set[str]:
    """What is noted of the call of one of its functions."""
    watch = Unseeded(Own(mine.C))
    with watch.watching():
        getattr(mine, function)()
    return {what.split(" ")[0] for what in watch.found}


def test_a_librarys_names_are_its_own_and_the_components_randomness_counts(mine):
    assert found(mine, "named") == set()
    assert found(mine, "own_name") == {"uuid.uuid4()", "os.urandom()"}
    assert found(mine, "own_bytes") == found(mine, "drawn") == {"os.urandom()"}
    assert isinstance(uuid.uuid4(), uuid.UUID) and len(os.urandom(4)) == 4


def test_a_generator_made_under_watch_is_of_its_kind(mine):
    with Unseeded(Own(mine.C)).watching():
        made = np.random.RandomState(3)
        assert isinstance(made, np.random.RandomState) and check_random_state(made) is made
        assert not isinstance(3, np.random.RandomState)
