"""CoFedMID: a coalition trains on class subsets, recycles samples with care and adds noise that cancels."""

from __future__ import annotations

from fedbench.plugins.defenses.cofedmid.defense import CoFedMID

__all__ = ["CoFedMID"]
