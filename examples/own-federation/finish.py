"""What a recording has beside its rounds."""

import digits
from fedbench.core.recording import describe, save_holdout, save_samples


def finish(folder, framework):
    """Write each site's samples, the hold-out and `federation.yaml`."""
    data, holdout = digits.sites()
    for name, (x, y) in data.items():
        save_samples(folder, name, x, y)
    save_holdout(folder, *holdout)
    describe(folder, model="digits:Net", classes=10, framework=framework)
