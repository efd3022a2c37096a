"""Commands of the leaderboard, announced in pyproject.toml under ``fedbench.commands``. Imported
for help: nothing heavy here.
"""
