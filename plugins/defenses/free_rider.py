"""Free-rider: members that upload nothing."""

from __future__ import annotations

from fedbench.core import Defense, MemberContext


class FreeRider(Defense):
    """Every member's update is zero: nothing of its own can leak, and nothing of it is learnt.

    The floor of privacy on every board, and of the members' contribution: a defense that does no better than this in
    accuracy protects by not taking part. The server still counts the members' weights, as it would for honest zeros.
    """

    def local_train(self, ctx: MemberContext) -> None:
        """Not at all: the update is what was received minus what was received."""
