"""A federation in a plain training loop: `python torch_loop.py FOLDER [ROUNDS]`."""

import sys

import torch

import digits
from finish import finish
from fedbench.core.recording import Recorder


def main(folder, rounds=15):
    data, _ = digits.sites()
    total = sum(digits.SIZES.values())
    torch.manual_seed(1)
    server = digits.Net()
    recorder = Recorder(folder)
    for number in range(1, rounds + 1):
        received = {name: value.clone() for name, value in server.state_dict().items()}
        average = {name: torch.zeros_like(value) for name, value in received.items()}
        with recorder.round(received) as upload:
            for position, (name, (x, y)) in enumerate(data.items()):
                state = digits.train(received, x, y, seed=1000 * number + position)
                upload(name, state, weight=len(y))
                for tensor, value in state.items():
                    average[tensor] += value * len(y) / total
        server.load_state_dict(average)
    recorder.final(server.state_dict())
    finish(folder, f"torch {torch.__version__}")


if __name__ == "__main__":
    main(sys.argv[1], *map(int, sys.argv[2:]))
