"""What a candidate is in truth; the values are those of records."""

MEMBER, OFL, IFL = 0, 1, 2  # the target's own, outside the federation, another client's
EXCLUDED = -1  # e.g. a sample that the defense held out of training: neither trained on nor a stranger
