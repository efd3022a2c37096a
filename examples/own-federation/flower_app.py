"""The federation in Flower's simulation: `python flower_app.py FOLDER [ROUNDS]`."""

import os
import sys

import flwr
import torch
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation

import digits
from finish import finish
from fedbench.core.recording.flower import RecordedStrategy

client_app = ClientApp()
SITES = len(digits.NAMES)


@client_app.train()
def train(message: Message, context: Context):
    position = int(context.node_config["partition-id"])
    name = digits.NAMES[position]
    x, y = digits.sites()[0][name]
    number = message.content["config"]["server-round"]
    received = message.content["arrays"].to_torch_state_dict()
    state = digits.train(received, x, y, seed=1000 * number + position)
    reply = {
        "arrays": ArrayRecord(state),
        "metrics": MetricRecord({"num-examples": len(y)}),
        "fedbench": ConfigRecord({"client": name}),  # the site's name, for the recording
    }
    return Message(content=RecordDict(reply), reply_to=message)


def server_app(folder, rounds):
    app = ServerApp()

    @app.main()
    def main(grid: Grid, context: Context):
        torch.manual_seed(1)
        strategy = FedAvg(fraction_evaluate=0.0, min_train_nodes=SITES, min_available_nodes=SITES)
        recorded = RecordedStrategy(strategy, folder)
        recorded.start(grid, ArrayRecord(digits.Net().state_dict()), num_rounds=rounds)

    return app


def main(folder, rounds=15):
    folder = os.path.abspath(folder)
    resources = {"client_resources": {"num_cpus": 1, "num_gpus": 0.0}}
    run_simulation(server_app(folder, rounds), client_app, SITES, backend_config=resources)
    finish(folder, f"flower {flwr.__version__}")


if __name__ == "__main__":
    main(sys.argv[1], *map(int, sys.argv[2:]))
