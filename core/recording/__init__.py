"""Record a federation of another system for ``fedbench audit`` (docs/recorded.md).

::

    recorder = Recorder("my-federation")
    for _ in range(15):
        with recorder.round(server.state_dict()) as upload:
            for name, client in clients.items():
                upload(name, client.train(server), weight=len(client.y))
        server.load_state_dict(...)
    recorder.final(server.state_dict())

    save_samples("my-federation", "hospital-a", x, y)
    save_holdout("my-federation", holdout_x, holdout_y)
    describe("my-federation", model="my_model:build", classes=10)

``fedbench.core.recording.flower`` and ``fedbench.core.recording.nvflare`` record these frameworks.
"""

from fedbench.core.recording.folder import describe, save_holdout, save_samples
from fedbench.core.recording.rounds import Recorder, RoundFiles

__all__ = ["Recorder", "RoundFiles", "describe", "save_holdout", "save_samples"]
