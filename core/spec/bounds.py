"""The largest values that a suite may state.

No method needs more. A bound turns a slip (a key held down, 1e9 for 1e-9) into one message with its
place, before anything of that size is made; without it the slip ends hours later, in memory or in a
plugin.
"""

from __future__ import annotations

# each has arrays of its own in the plan; studies of many devices draw from a few thousand
CLIENTS = 100_000
ROUNDS = 1_000_000  # a round takes milliseconds at the very least
EPOCHS = 100_000
SAMPLES = 1_000_000_000  # of any one kind; ids are 64 bit, and no data set here has more
MODELS = 10_000  # shadow models: each is a training
GROUPS = 1_000
FACTOR = 1e6  # a step or penalty that multiplies parameters: float32 overflows a few steps beyond
# of Dirichlet: below it, one client has each class, and the draw underflows
SMALLEST_CONCENTRATION = 1e-4
TURN = 3600.0  # degrees
BRIGHTNESS = 1000.0
SECONDS = 1e8  # three years
MEMORY_GB = 1e6  # a petabyte
PROCESSORS = 10_000.0  # of one machine

SEEDS = 1_000
SETTINGS = 1_000
COALITIONS = 100
USES = 1_000  # entries of a list of defenses, attacks or analyses
ROWS = 1_000  # that one grid makes
# that all entries of a list make together: each is validated, and is a row of the board
ROWS_OF_LIST = 5_000
CELLS = 1_000_000  # of a suite's plan: a record and two files each
