"""Bugs that are planted in a copy of the tree: what the oracle and the gate must find."""

from __future__ import annotations

EVERYTHING = {"none", "mixup", "cofedmid"}
EVERY_ATTACK = {"loss-series", "fedmia-ii", "fta-l"}
SERIES = "    class Params(LossOn, Followed):\n        pass\n"  # of Loss-Series
MEASURED = (
    "\n    def _measured(self, observations):\n        return super()._measured(observations){}\n"
)

# name: (file, what it says, what it says with the bug, the defenses and the attacks with other
# scores)
OF_THE_ORACLE = {
    "one shuffle off by one": (
        "core/federation/turn.py",
        "torch.randperm(n, generator=shuffle)",
        "torch.randperm(n - 1, generator=shuffle)",
        EVERYTHING,
        EVERY_ATTACK,
    ),
    "server weights divided by their maximum": (
        "core/federation/loop.py",
        "return weights / weights.sum()",
        "return weights / weights.max()",
        EVERYTHING,
        EVERY_ATTACK,
    ),
    "a sign dropped": (
        "plugins/attacks/trajectory.py",
        "return -slope(",
        "return slope(",
        EVERYTHING,
        {"fta-l"},
    ),
    "noise times 0.9": (
        "plugins/defenses/cofedmid/planning.py",
        "dtype=torch.float64) * p.sigma",
        "dtype=torch.float64) * p.sigma * 0.9",
        {"cofedmid"},
        EVERY_ATTACK,
    ),
    "the labels of mixup unmixed": (
        "plugins/defenses/augmentation.py",
        "soft = keep * target + (1 - keep) * target[partner]",
        "soft = target",
        {"mixup"},
        EVERY_ATTACK,
    ),
    "evaluation on training data": (
        "core/run/train.py",
        "audits = Audits(scene, training, recorder, job.setting.audit.precision)",
        "scene = replace(scene, data=replace(scene.data, test_x=scene.data.train_x, "
        "test_y=scene.data.train_y))\n"
        "    audits = Audits(scene, training, recorder, job.setting.audit.precision)",
        EVERYTHING,
        set(),
    ),
    "non-members drawn from the training set": (
        "core/population/audit.py",
        "equal = rng.choice(free, share, replace=False)",
        "equal = rng.choice(shards[(client + 1) % len(shards)], share, replace=False)",
        EVERYTHING,
        EVERY_ATTACK,
    ),
    "an attack that reads the wrong round": (
        "plugins/attacks/trajectory.py",
        SERIES,
        SERIES + MEASURED.format("[:1]"),
        EVERYTHING,
        {"loss-series"},
    ),
}

# the same of the gate, but its defenses
OF_THE_GATE = {
    "none": ("plugins/attacks/trajectory.py", "slope", "slope", set()),
    "a sign dropped": (
        "plugins/attacks/trajectory.py",
        "return -slope(",
        "return slope(",
        {"fta-l"},
    ),
    "the audit lists misaligned": (
        "plugins/attacks/trajectory.py",
        SERIES,
        SERIES + MEASURED.format("[..., ::-1]"),
        {"loss-series"},
    ),
    "a client off by one": (
        "plugins/attacks/fedmia.py",
        "targets = of_target(measured, observations)",
        "targets = of_others(measured, observations)[:, 0]",
        {"fedmia-i", "fedmia-ii"},
    ),
}
