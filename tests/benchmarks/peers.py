"""The same federation in fedbench, a bare loop and other frameworks, each in a process of its own
that trains one round whenever it is told to.

Needs PyTorch and the framework alone, so that each runs in an environment of its own. Every one
gets the batches as slices of tensors, the fastest form, in place of its usual data loader.
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from contextlib import closing
from dataclasses import asdict, dataclass
from functools import cache, partial
from itertools import count
from pathlib import Path

import torch
from torch import nn
from torch.nn.functional import cross_entropy


def blazefl_network():
    """BlazeFL's CNN of its benchmark, PyTorch's tutorial network for CIFAR-10: 62,006
    parameters.
    """
    return nn.Sequential(
        nn.Conv2d(3, 6, 5),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(6, 16, 5),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(400, 120),
        nn.ReLU(),
        nn.Linear(120, 84),
        nn.ReLU(),
        nn.Linear(84, 10),
    )


def pfl_network():
    """Two 3x3 convolutions without padding, 2x2 max-pool, a hidden layer, dropout: 1,626,442
    parameters.
    """
    return nn.Sequential(
        nn.Conv2d(3, 32, 3),
        nn.ReLU(),
        nn.Conv2d(32, 64, 3),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Dropout(0.25),
        nn.Flatten(),
        nn.Linear(64 * 14 * 14, 128),
        nn.ReLU(),
        nn.Dropout(0.5),
        nn.Linear(128, 10),
    )


def resnet18():
    """fedbench's ResNet18 with 100 classes, of FedMIA's recipe."""
    from fedbench.core.models.residual import ResNet18

    return ResNet18().build((3, 32, 32), 100)


def mlp():
    """The main suite's network for digits."""
    from fedbench.core.models.sequential import MLP

    return MLP(hidden=(256, 128)).build((1, 8, 8), 10)


NETWORKS = {"blazefl": blazefl_network, "pfl": pfl_network, "resnet18": resnet18, "mlp": mlp}


@dataclass(frozen=True)
class Workload:
    """A federation on random images, of CIFAR-10's shape, trained by SGD without momentum.

    The defaults are BlazeFL's benchmark; its learning rate and batches too.
    """

    network: str = "blazefl"
    clients: int = 100
    cohort: int = 100
    samples: int = 500
    batch: int = 50
    epochs: int = 5
    lr: float = 0.1
    shape: tuple[int, ...] = (3, 32, 32)
    classes: int = 10
    device: str = "cpu"
    cores: int = 1
    """worker processes, of a framework that has some"""

    @property
    def steps(self):
        """Local steps a round."""
        return self.cohort * self.epochs * -(-self.samples // self.batch)

    def module(self):
        """The network with the same weights in every process."""
        torch.manual_seed(0)
        return NETWORKS[self.network]().to(self.device)

    def participants(self):
        """Endless cohorts, each in random order."""
        generator = torch.Generator().manual_seed(0)
        while True:
            yield torch.randperm(self.clients, generator=generator)[: self.cohort].tolist()


# Granqvist et al., NeurIPS 2024 (datasets and benchmarks), Table 1: CIFAR-10 IID
PFL = Workload("pfl", clients=1000, cohort=50, samples=50, batch=10, epochs=1)


@cache
def data_of(workload, client):
    """(x, y) of a client, from its number."""
    g = torch.Generator().manual_seed(client)
    x = torch.rand(workload.samples, *workload.shape, generator=g)
    y = torch.randint(0, workload.classes, (workload.samples,), generator=g)
    return x.to(workload.device), y.to(workload.device)


def train(module, optimizer, workload, client):
    """The local epochs of a client, as one would write them by hand."""
    x, y = data_of(workload, client)
    for _ in range(workload.epochs):
        for pick in torch.randperm(len(y)).to(y.device).split(workload.batch):
            optimizer.zero_grad()
            cross_entropy(module(x[pick]), y[pick]).backward()
            optimizer.step()


# --- frameworks: each trains a round at every turn ------------------------------------------------


def bare(workload, turns):
    """Local steps and nothing else: no model is sent, collected or averaged."""
    module = workload.module()
    optimizer = torch.optim.SGD(module.parameters(), workload.lr)
    for cohort, _ in zip(workload.participants(), turns, strict=False):
        for client in cohort:
            train(module, optimizer, workload, client)


def ours(workload, turns):
    """fedbench's round loop in deterministic mode, as in its runs."""
    rounds = training(workload).rounds()
    torch.set_deterministic_debug_mode("error")
    for _ in turns:
        next(rounds)


def training(workload, rounds=100_000, module=None, optimizer=None, **settings):
    """fedbench's training of the workload; ``settings``: more fields of a federation."""
    from workloads import training_of

    from fedbench.core import MemberData

    return training_of(
        module or workload.module(),
        [MemberData(*data_of(workload, client)) for client in range(workload.clients)],
        rounds,
        classes=workload.classes,
        device=workload.device,
        batch_size=workload.batch,
        local_epochs=workload.epochs,
        participation=workload.cohort / workload.clients,
        optimizer=optimizer or {"lr": workload.lr},
        **settings,
    )


def pfl(workload, turns):
    """pfl-research, which draws a cohort of its own and takes samples in their order."""
    from pfl.aggregate.simulate import SimulatedBackend
    from pfl.aggregate.weighting import WeightByUser
    from pfl.algorithm.base import NNAlgorithmParams
    from pfl.algorithm.federated_averaging import FederatedAveraging
    from pfl.data.federated_dataset import FederatedDataset
    from pfl.data.sampling import get_user_sampler
    from pfl.hyperparam import NNTrainHyperParams
    from pfl.model.pytorch import PyTorchModel

    module = workload.module()
    module.loss, module.metrics = (lambda x, y: cross_entropy(module(x), y)), (lambda x, y: {})
    clients = range(workload.clients)
    data = {client: data_of(workload, client) for client in clients}
    users = FederatedDataset.from_slices(data, get_user_sampler("random", clients))
    backend = SimulatedBackend(users, users, postprocessors=[WeightByUser()])
    model = PyTorchModel(module, torch.optim.SGD, torch.optim.SGD(module.parameters(), 1.0))
    local = NNTrainHyperParams(
        local_learning_rate=workload.lr,
        local_num_epochs=workload.epochs,
        local_batch_size=workload.batch,
    )
    whole = {
        "evaluation_frequency": 1_000_000,
        "train_cohort_size": workload.cohort,
        "val_cohort_size": 0,
    }
    algorithm, ends = FederatedAveraging(), count(1)  # a run goes on where the last one ended
    for _ in turns:
        params = NNAlgorithmParams(central_num_iterations=next(ends), **whole)
        algorithm.run(params, backend, model, local, send_metrics_to_platform=False)


def flower(workload, turns):
    """Flower's simulation runtime on Ray, FedAvg, with a client app a core."""
    from flwr.app import ArrayRecord
    from flwr.clientapp import ClientApp
    from flwr.serverapp import ServerApp
    from flwr.serverapp.strategy import FedAvg
    from flwr.simulation import run_simulation

    turns = iter(turns)

    class Turns(FedAvg):
        """FedAvg that begins a round at a turn."""

        def configure_train(self, *args):
            next(turns)  # StopIteration ends the simulation
            return super().configure_train(*args)

        def aggregate_train(self, number, replies):
            replies = list(replies)
            errors = [reply.error.reason for reply in replies if reply.has_error()]
            if errors or len(replies) < workload.cohort:
                raise RuntimeError(f"{len(replies)} replies, errors: {errors[:1]}")
            return super().aggregate_train(number, replies)

    server, client = ServerApp(), ClientApp()
    client.train()(partial(flower_client, workload))

    @server.main()
    def rounds(grid, context):
        strategy = Turns(
            fraction_train=workload.cohort / workload.clients,
            fraction_evaluate=0.0,
            min_available_nodes=workload.clients,
        )
        arrays = ArrayRecord(workload.module().state_dict())
        try:
            strategy.start(grid, arrays, num_rounds=1_000_000)
        except StopIteration:
            return

    gpus = 1.0 / workload.cores if workload.device.startswith("cuda") else 0.0
    resources = {
        "client_resources": {"num_cpus": 1, "num_gpus": gpus},
        "init_args": {"num_cpus": workload.cores},
    }
    run_simulation(server, client, workload.clients, backend_config=resources)


def flower_client(workload, message, context):
    """A client's part of a round of Flower, in a worker process."""
    from flwr.app import ArrayRecord, Message, MetricRecord, RecordDict

    torch.set_num_threads(1)
    module = _module(workload)
    module.load_state_dict(message.content["arrays"].to_torch_state_dict())
    optimizer = torch.optim.SGD(module.parameters(), workload.lr)
    train(module, optimizer, workload, context.node_config["partition-id"])
    content = RecordDict(
        {
            "arrays": ArrayRecord(module.state_dict()),
            "metrics": MetricRecord({"num-examples": workload.samples}),
        }
    )
    return Message(content=content, reply_to=message)


@cache
def _module(workload):
    return workload.module()


class Partitions:
    """BlazeFL's model selector and partitioned data set of a workload."""

    def __init__(self, workload):
        self.workload = workload

    def select_model(self, name):
        """The network."""
        return self.workload.module()

    def get_dataloader(self, type_, cid, batch_size, generator):
        """The client's batches, shuffled anew in each epoch."""
        return Batches(*data_of(self.workload, cid), batch_size)

    def set_dataset(self, type_, cid, dataset):
        """Nothing: the data do not change."""


class Batches:
    """Shuffled slices of tensors in the place of a data loader."""

    dataset = None

    def __init__(self, x, y, size):
        self.x, self.y, self.size = x, y, size

    def __iter__(self):
        for pick in torch.randperm(len(self.y)).to(self.y.device).split(self.size):
            yield self.x[pick], self.y[pick]


def blazefl(workload, turns):
    """BlazeFL's FedAvg with a pool of a process a core, as its benchmark has it."""
    import torch.multiprocessing as mp
    from blazefl.contrib import FedAvgBaseServerHandler, FedAvgProcessPoolClientTrainer
    from blazefl.core import IPCMode

    mp.set_start_method("spawn" if workload.device.startswith("cuda") else "fork")
    # every round forks its workers anew: they inherit the data and what an optimiser imports
    torch.optim.SGD(workload.module().parameters(), workload.lr)
    for client in range(workload.clients):
        data_of(workload, client)
    partitions = Partitions(workload)
    common = {
        "model_selector": partitions,
        "model_name": "network",
        "dataset": partitions,
        "num_clients": workload.clients,
        "device": workload.device,
        "batch_size": workload.batch,
        "seed": 0,
    }
    with tempfile.TemporaryDirectory() as folder:
        server = FedAvgBaseServerHandler(
            global_round=1_000_000, sample_ratio=workload.cohort / workload.clients, **common
        )
        trainer = FedAvgProcessPoolClientTrainer(
            share_dir=Path(folder, "share"),
            state_dir=Path(folder, "state"),
            epochs=workload.epochs,
            lr=workload.lr,
            num_parallels=workload.cores,
            ipc_mode=IPCMode.SHARED_MEMORY,
            **common,
        )
        for _ in turns:
            clients = server.sample_clients()
            trainer.local_process(server.downlink_package(), clients)
            for package in trainer.uplink_package():
                server.load(package)


FRAMEWORKS = {"bare": bare, "pfl": pfl, "flower": flower, "blazefl": blazefl, "ours": ours}
POOLS = {"flower", "blazefl"}
"""those with worker processes of their own"""


def peak_gib(device):
    """GiB that torch reserved on the device at most; of a CPU, that this process had."""
    if device.startswith("cuda"):
        return torch.cuda.max_memory_reserved(device) / 2**30
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20


# --- processes ------------------------------------------------------------------------------------


def serve(name, workload):
    """Train rounds in this process as the lines of standard input ask for."""
    channel = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what a framework prints is no answer

    def answer(**message):
        print(json.dumps(message), file=channel, flush=True)

    def turns():
        answer(ready=0.0)
        for _ in sys.stdin:
            yield
            if workload.device.startswith("cuda"):
                torch.cuda.synchronize()
            answer(done=peak_gib(workload.device))

    torch.set_num_threads(1)
    try:
        FRAMEWORKS[name](workload, turns())
    except Exception as error:
        lines = str(error).strip().splitlines() or [""]
        answer(failed=f"{type(error).__name__}: {lines[0]}")


class Peer:
    """Processes in which a framework trains a workload: one with ``cores`` workers, or as many of
    one thread side by side.
    """

    def __init__(self, name, workload, python=None, log=subprocess.DEVNULL):
        copies = 1 if name in POOLS else workload.cores
        self.steps = copies * workload.steps
        here = Path(__file__).resolve().parent
        path = os.pathsep.join((str(here), str(here.parent), os.environ.get("PYTHONPATH", "")))
        threads = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "FLWR_TELEMETRY_ENABLED": "0"}
        words = [python or sys.executable, "-m", "peers", name, json.dumps(asdict(workload))]
        self.processes = [
            subprocess.Popen(
                words,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                env=os.environ | threads | {"PYTHONPATH": path},
            )
            for _ in range(copies)
        ]
        self.peak_gib = 0.0
        """memory of the largest process"""
        self.failed = self._answers("ready")

    def _answers(self, wanted):
        """Wait for every process; return why one failed, or None."""
        for process in self.processes:
            line = process.stdout.readline()
            message = json.loads(line) if line else {"failed": "its process ended"}
            if wanted not in message:
                return message["failed"]
            self.peak_gib = max(self.peak_gib, message[wanted])
        return None

    def round(self):
        """Train a round in every process at once; return its wall and CPU seconds."""
        wall, cpu = time.perf_counter(), self._cpu_seconds()
        for process in self.processes:
            print("go", file=process.stdin, flush=True)
        self.failed = self._answers("done")
        if self.failed:
            raise RuntimeError(self.failed)
        return time.perf_counter() - wall, self._cpu_seconds() - cpu

    def _cpu_seconds(self):
        """Seconds of all processes so far."""
        import psutil

        seconds = 0.0
        for process in self._tree():
            try:
                times = process.cpu_times()
            except psutil.NoSuchProcess:
                continue
            seconds += sum(times[:4])
        return seconds

    def _tree(self):
        import psutil

        tree = []
        for process in self.processes:
            if process.poll() is None:
                root = psutil.Process(process.pid)
                tree += [root, *root.children(recursive=True)]
        return tree

    def close(self):
        """End the processes and what they started."""
        import psutil

        tree = self._tree()
        for process in tree:
            if process.is_running():
                process.kill()
        psutil.wait_procs(tree)
        for process in self.processes:
            process.wait()
            process.stdin.close()
            process.stdout.close()


def started(stack, workload, pythons=None):
    """Return (name -> the framework's processes, name -> why it does not run), ours last.

    Args:
        stack: the ``ExitStack`` that ends the processes.
        pythons: name -> interpreter of the framework's environment, by default this one.
    """
    peers, reasons = {}, {}
    for name in FRAMEWORKS:
        peer = stack.enter_context(closing(Peer(name, workload, (pythons or {}).get(name))))
        if peer.failed:
            reasons[name] = peer.failed
        else:
            peers[name] = peer
    return peers, reasons


if __name__ == "__main__":
    import peers  # workers of frameworks find its functions by this name

    fields = json.loads(sys.argv[2])
    peers.serve(sys.argv[1], peers.Workload(**fields | {"shape": tuple(fields["shape"])}))
