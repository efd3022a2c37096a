"""Real Ray nodes on this machine: each a raylet with an environment of its own, started by `ray
start`.
"""

from __future__ import annotations

import os
import secrets
import shutil
import socket
import subprocess
import sys
import tempfile
from contextlib import suppress
from pathlib import Path

import psutil
from running import wait_for

AUTHENTICATION = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}
"""of the clusters of this test session, in place of the user's own token"""


class Node:
    """`ray start --block` in a session of its own. ``address``: of the head, which it is or
    joins.
    """

    def __init__(self, name: str, folder: Path, address: str | None = None, cpus: int = 1) -> None:
        self.name, self.log = name, folder / f"{name}.log"
        port = free_port()
        self.address = address or f"127.0.0.1:{port}"
        words = [
            sys.executable,
            "-m",
            "ray.scripts.scripts",
            "start",
            "--block",
            "--node-name",
            name,
            f"--num-cpus={cpus}",
            "--num-gpus=0",
            "--object-store-memory=100000000",
            "--disable-usage-stats",
        ]
        if address is None:  # sockets lie below: a short name
            self.folder = Path(tempfile.mkdtemp(prefix="fbray", dir="/tmp"))
            words += [
                "--head",
                f"--port={port}",
                "--node-ip-address=127.0.0.1",
                f"--temp-dir={self.folder}",
            ]
            words += ["--include-dashboard=false"]
        else:
            self.folder = None
            words += [f"--address={address}", "--node-ip-address=127.0.0.1"]
        cache = folder / f"cache-{name}"
        cache.mkdir(exist_ok=True)
        self.environment = {
            **os.environ,
            **AUTHENTICATION,
            "XDG_CACHE_HOME": str(cache),
            "FEDBENCH_NODE": name,
        }
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                words,
                env=self.environment,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                cwd=folder,
            )
        try:
            wait_for(lambda: b"Ray runtime started" in self.log.read_bytes(), self.process)
        except BaseException:
            self.end()
            raise

    def everything(self) -> list[psutil.Process]:
        """Its processes, with what runs on it."""
        mine = psutil.Process(self.process.pid)
        return [mine, *mine.children(recursive=True)]

    def die(self) -> list[psutil.Process]:
        """As when the machine loses its power, as far as Ray can tell: the raylet is killed.
        Returns what ran on the node.
        """
        ran = self.everything()
        for one in ran:
            if one.name() == "raylet":
                one.kill()
        return ran

    def end(self) -> None:
        if self.process.poll() is None:
            for one in self.everything():
                with suppress(psutil.NoSuchProcess):
                    one.kill()
            self.process.wait()
        if self.folder is not None:
            shutil.rmtree(self.folder, ignore_errors=True)


def free_port() -> int:
    """A port of this machine without a listener."""
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return int(s.getsockname()[1])
