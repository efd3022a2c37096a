"""Record a Flower federation (flwr 1.21 or later, Message API).

::

    strategy = RecordedStrategy(FedAvg(fraction_evaluate=0.0), "/data/my-federation")
    strategy.start(grid, initial_arrays, num_rounds=15)

Node ids are drawn anew in each run, so clients name themselves in their reply::

    RecordDict({"arrays": ..., "metrics": ..., "fedbench": ConfigRecord({"client": "hospital-a"})})

Without a name, with one that no file can have, or with another node's, a client is ``node-<id>``.
Nothing here imports Flower.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from fedbench.core.contract.errors import UserError
from fedbench.core.recording.rounds import RoundFiles, Tensors, unused, write_tensors
from fedbench.core.store.files import names_client

_NODE = "node-"


class RecordedStrategy:
    """Strategy that records what another one sends and receives, and changes nothing.

    A wrapper inside another sees what that one leaves: record outside a wrapper for differential
    privacy to record what clients send, and inside to record what it makes of it. A round in which
    clients received different models cannot be recorded.
    """

    def __init__(self, strategy: Any, folder: str | Path) -> None:
        self.strategy = strategy
        self.folder = unused(folder)
        self._weight = getattr(strategy, "weighted_by_key", "num-examples")
        self._owners: dict[str, int] = {}
        self._round: RoundFiles | None = None
        self._asked: set[int] = set()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.strategy, name)

    def configure_train(self, server_round: int, *args: Any) -> list[Any]:
        """Return the strategy's messages, after recording the model in them."""
        messages = list(self.strategy.configure_train(server_round, *args))
        self._round = None
        if messages:
            received = _array_record(messages[0].content)
            for message in messages[1:]:
                _require_equal(received, _array_record(message.content), server_round)
            self._round = RoundFiles(self.folder, server_round, _tensors(received))
            self._asked = {message.metadata.dst_node_id for message in messages}
        return messages

    def aggregate_train(self, server_round: int, replies: Iterable[Any]) -> Any:
        """Record the replies, and return what the strategy makes of them."""
        replies = list(replies)
        if self._round is not None:
            silent = set(self._asked)
            for reply in replies:
                self._record(reply, self._round)
                silent.discard(reply.metadata.src_node_id)
            for node in sorted(silent):
                self._round.failure("no reply", node=node)
            self._round.close()
        return self.strategy.aggregate_train(server_round, replies)

    def _record(self, reply: Any, files: RoundFiles) -> None:
        node = reply.metadata.src_node_id
        if reply.has_error():
            files.failure(f"{reply.error.code}: {reply.error.reason or ''}", node=node)
            return
        metrics: dict[str, Any] = {}
        for record in reply.content.metric_records.values():
            metrics |= record
        tensors = _tensors(_array_record(reply.content))
        weight = metrics.get(self._weight)
        files.upload(self._name(reply.content, node), tensors, weight, node=node, metrics=metrics)

    def _name(self, content: Any, node: int) -> str:
        """Return the name in a reply, which is checked: it becomes a path."""
        record = content.config_records.get("fedbench", {})
        name, unnamed = str(record.get("client", "")), f"{_NODE}{node}"
        if not names_client(name) or name.lower().startswith(_NODE):
            return unnamed
        owner = self._owners.setdefault(name.lower(), node)
        return name if owner == node else unnamed

    def start(self, *args: Any, **options: Any) -> Any:
        """Run the federation as the strategy does, and record the model after the last round."""
        result = type(self.strategy).start(self, *args, **options)
        if len(result.arrays):
            write_tensors(self.folder / "final.safetensors", _tensors(result.arrays))
        return result


def _array_record(content: Any) -> Any:
    """Return the one record of arrays in a message, as Flower's strategies require it."""
    records = list(content.array_records.values())
    if len(records) != 1:
        raise UserError(f"a message has {len(records)} ArrayRecords; fedbench records exactly one")
    return records[0]


def _tensors(record: Any) -> Tensors:
    return {name: array.numpy() for name, array in record.items()}


def _require_equal(first: Any, second: Any, number: int) -> None:
    """Raise ``UserError`` where a client is sent another model than the first one."""
    if second is first:
        return
    for name, array in first.items():
        if name not in second or second[name].data != array.data:
            raise UserError(
                f"round {number}: clients receive different models ({name}); only federations with "
                "one model can be recorded"
            )
