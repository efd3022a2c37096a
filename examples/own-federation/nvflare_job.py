"""The federation in NVFlare's simulator: `python nvflare_job.py FOLDER [ROUNDS]`."""

import os
import sys
import tempfile

import nvflare
import torch
from nvflare.app_opt.pt.recipes.fedavg import FedAvgRecipe
from nvflare.recipe import SimEnv

import digits
from finish import finish
from fedbench.core.recording.nvflare import RecordRounds

HERE = os.path.dirname(os.path.abspath(__file__))


def main(folder, rounds=15):
    folder = os.path.abspath(folder)
    paths = [HERE, os.environ.get("PYTHONPATH", "")]  # the sites' processes import digits
    os.environ["PYTHONPATH"] = os.pathsep.join(paths)
    torch.manual_seed(1)
    recipe = FedAvgRecipe(
        name="digits",
        model=digits.Net(),
        min_clients=len(digits.NAMES),
        num_rounds=rounds,
        train_script=os.path.join(HERE, "nvflare_client.py"),
    )
    recipe.add_server_input_filter(RecordRounds(folder), tasks=["train"])
    with tempfile.TemporaryDirectory() as workspace:
        environment = SimEnv(
            clients=digits.NAMES, num_threads=len(digits.NAMES), workspace_root=workspace
        )
        recipe.execute(environment)
    finish(folder, f"nvflare {nvflare.__version__}")


if __name__ == "__main__":
    main(sys.argv[1], *map(int, sys.argv[2:]))
