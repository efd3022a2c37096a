"""Early stopping over the rounds of a federation: a member that stopped trains no more, and until then nothing changes."""

from __future__ import annotations

import pytest
import torch
from parties import generator
from tiny import tiny_setup, train_all

from fedbench.core import MemberData
from fedbench.plugins.defenses.early_stopping import EarlyStopping
from fedbench.plugins.defenses.stopping import Patience

ROUNDS = 12


def noise_labels(count: int = 3, samples: int = 40) -> list[MemberData]:
    """Labels that nothing explains: whatever is learnt of them is learnt by heart, so the validation loss soon rises."""
    g = generator(3)
    return [MemberData(torch.randn(samples, 4, generator=g), torch.randint(0, 3, (samples,), generator=g)) for _ in range(count)]


def federation(patience_rounds):
    """The finished training and its rounds."""
    defense = EarlyStopping(patience=1, patience_rounds=patience_rounds, validation=0.5)
    setup = tiny_setup(defense, clients=noise_labels(), members=(0, 1), rounds=ROUNDS, local_epochs=2, batch_size=10)
    return train_all(setup)


def received_losses(training, rounds, client):
    """The validation loss of the model received in each round, measured anew."""
    setup, data = training.setup, training.clients[client]
    models = [setup.initial[0], *(r.models[0] for r in rounds[:-1])]
    x, y = data.x[data.held_out], data.y[data.held_out]
    logits = [setup.flat.logits(m, rounds[0].buffers[0], x) for m in models]
    return [float(torch.nn.functional.cross_entropy(z, y)) for z in logits]


@pytest.mark.parametrize("patience", [1, 3])
def test_who_stopped_uploads_the_received_model_and_the_rounds_before_are_untouched(patience):
    plain, everything = federation(None)
    stopped, rounds = federation(patience)
    last = stopped.facts()["last round trained of each member"]
    for member in (0, 1):
        rule, expected = Patience(patience), ROUNDS
        for t, loss in enumerate(received_losses(stopped, rounds, member), 1):
            rule.improves(loss)
            if rule.spent:
                expected = t - 1
                break
        assert last[member] == expected < ROUNDS
        moved = [bool(r.uploads.updates[member].any()) for r in rounds]
        assert moved == [t <= expected for t in range(1, ROUNDS + 1)]
    for t in range(min(last)):
        assert torch.equal(rounds[t].models, everything[t].models)
    assert "last round trained of each member" not in plain.facts()


def test_a_patience_over_rounds_silences_the_remark_on_short_rounds():
    setup = tiny_setup(EarlyStopping(), clients=noise_labels(), members=(0,), local_epochs=2)
    assert EarlyStopping().remarks(setup.facts) and not EarlyStopping(patience_rounds=3).remarks(setup.facts)
