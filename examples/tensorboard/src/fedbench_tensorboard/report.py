"""TensorBoard: the runs of a results folder as event files."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

from fedbench.core import Report
from torch.utils.tensorboard import SummaryWriter


class TensorBoard(Report):
    """Accuracy and training loss of each run by round, and the AUC of each attack; ``tensorboard
    --logdir`` shows the folder.
    """

    def write(self, results: Path, plots: bool = True) -> Path:
        """results/leaderboard/tensorboard, a folder a run."""
        folder = results / "leaderboard" / "tensorboard"
        shutil.rmtree(folder, ignore_errors=True)
        for path in sorted((results / "records").glob("*.json")):
            record = json.loads(path.read_text())
            with SummaryWriter(str(folder / path.stem)) as writer:
                for row in record["run"]["history"]:
                    writer.add_scalar("accuracy", row["accuracy"], row["round"])
                    if row["train_loss"] is not None:
                        writer.add_scalar("training loss", row["train_loss"], row["round"])
                for cell in record["cells"]:
                    for group, scores in (cell["pooled"] or {}).items():  # ofl, ifl, mix
                        writer.add_scalar(
                            f"AUC {group}/{cell['attack']['label']}",
                            scores["values"]["auc"]["value"],
                        )
        return folder
