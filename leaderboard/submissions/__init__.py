"""Results of other groups: bundles, import, merge, reproduction and levels of trust."""
