"""What each site of `nvflare_job.py` runs."""

import nvflare.client as flare
import torch

import digits

flare.init()
name = flare.get_site_name()
x, y = digits.sites()[0][name]
while flare.is_running():
    model = flare.receive()
    received = {tensor: torch.as_tensor(value) for tensor, value in model.params.items()}
    seed = 1000 * (model.current_round + 1) + digits.NAMES.index(name)
    state = digits.train(received, x, y, seed)
    flare.send(flare.FLModel(params=state, meta={"NUM_STEPS_CURRENT_ROUND": len(y)}))
