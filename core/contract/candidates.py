"""What a candidate is in truth; the values are those of records."""

from __future__ import annotations

from typing import Literal

MEMBER, OFL, IFL = 0, 1, 2  # the target's own, outside the federation, another client's
EXCLUDED = -1  # counts nowhere: e.g. a sample that the defense held out of training, neither trained on nor a stranger

# Which candidates a score is of. `ofl`: members vs outside-federation non-members, what boards rank on; `ifl`: vs other
# clients' training samples; `mix`: vs both in equal shares of the clients; `canary`: mislabelled members vs mislabelled
# outside non-members.
Group = Literal["mix", "ofl", "ifl", "canary"]
