"""Wall and CPU time of a run, as its records tell them."""

from __future__ import annotations

import datetime
import resource
import time
from dataclasses import dataclass

from fedbench.core.store.record import Measured


@dataclass
class Clock:
    """Wall and CPU time of the run so far."""

    started: str
    wall: float

    @classmethod
    def start(cls) -> Clock:
        now = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
        return cls(now, time.perf_counter())

    def measured(self, training: dict[str, float] | None = None, attack_cpu: float = 0.0) -> Measured:
        """With what the processes forked from this one have used until now."""
        training = training or {"train_cpu_s": 0.0, "signals_cpu_s": 0.0}
        wall = training.get("train_wall_s")
        used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
        return Measured(
            started=self.started, wall_s=round(time.perf_counter() - self.wall, 3),
            cpu_s=round(sum(u.ru_utime + u.ru_stime for u in used), 3), train_cpu_s=round(training["train_cpu_s"], 3),
            train_wall_s=None if wall is None else round(wall, 3),
            signals_cpu_s=round(training["signals_cpu_s"], 3), attack_cpu_s=round(attack_cpu, 3),
            peak_memory_mb=round(max(u.ru_maxrss for u in used) / 1024, 1),
        )  # fmt: skip
