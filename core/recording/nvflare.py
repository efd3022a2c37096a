"""Record an NVFlare federation (nvflare 2.6 or later) on its server.

::

    recipe.add_server_input_filter(RecordRounds("/data/my-federation"), tasks=["train"])

Clients have the names of their sites; rounds count from 0. FedAvg, FedOpt, FedProx, SCAFFOLD and
ScatterAndGather fire the events that are recorded. Uploads are what the server's own filters leave.
No event has the model after the last round: ``fedbench audit`` takes the weighted mean.
"""

from __future__ import annotations

from pathlib import Path

from nvflare.apis.dxo import DXO, DataKind, MetaKey, from_shareable
from nvflare.apis.event_type import EventType
from nvflare.apis.filter import Filter
from nvflare.apis.fl_constant import ReservedKey
from nvflare.apis.fl_context import FLContext
from nvflare.apis.shareable import Shareable
from nvflare.app_common.app_constant import AppConstants
from nvflare.app_common.app_event_type import AppEventType

from fedbench.core.contract.errors import UserError
from fedbench.core.recording.rounds import RoundFiles, Tensors, unused

_KINDS = {DataKind.WEIGHTS: "model", DataKind.WEIGHT_DIFF: "delta"}


class RecordRounds(Filter):
    """Component of the server that records what it sends and receives, and changes nothing.

    It is a filter because recipes accept no other component.
    """

    def __init__(self, folder: str) -> None:
        super().__init__()
        self.folder = folder  # NVFlare reads arguments of its components from such attributes
        self._round: RoundFiles | None = None
        self._silent: set[str] = set()

    def process(self, shareable: Shareable, fl_ctx: FLContext) -> Shareable:
        """Return the client's result."""
        return shareable

    def handle_event(self, event_type: str, fl_ctx: FLContext) -> None:
        """Record a task before it is sent, a result, or the end of a round.

        A round that cannot be written is left without its mark, as one that was cut off.
        """
        try:
            self._record(event_type, fl_ctx)
        except (OSError, UserError) as error:
            self._round = None
            self.log_error(fl_ctx, f"fedbench cannot record this round: {error}")

    def _record(self, event_type: str, fl_ctx: FLContext) -> None:
        if event_type == EventType.START_RUN:
            self._start(fl_ctx)
        elif event_type == AppEventType.BEFORE_TRAIN_TASK:
            self._sent(fl_ctx.get_prop(AppConstants.TRAIN_SHAREABLE), fl_ctx)
        elif event_type == AppEventType.AFTER_CONTRIBUTION_ACCEPT:
            if self._is_open(fl_ctx):
                self._replied(fl_ctx)
        elif event_type == AppEventType.AFTER_AGGREGATION and self._is_open(fl_ctx):
            self._close()

    def _start(self, fl_ctx: FLContext) -> None:
        """Stop the run where the folder has another recording."""
        try:
            unused(self.folder)
        except UserError as error:
            self.system_panic(str(error), fl_ctx)

    def _is_open(self, fl_ctx: FLContext) -> bool:
        """Return whether the context's round is the one being recorded: late results are not."""
        number = fl_ctx.get_prop(AppConstants.CURRENT_ROUND)
        return self._round is not None and self._round.number == number

    def _sent(self, task: Shareable, fl_ctx: FLContext) -> None:
        """Record the model of a task, once for all clients of a round."""
        number = int(task.get_header(AppConstants.CURRENT_ROUND))
        if self._round is None or self._round.number != number:
            self._silent = set()
            self._round = RoundFiles(Path(self.folder), number, _tensors(from_shareable(task)))
        self._silent.add(_client(fl_ctx))

    def _replied(self, fl_ctx: FLContext) -> None:
        assert self._round is not None
        client, result = _client(fl_ctx), fl_ctx.get_prop(AppConstants.TRAINING_RESULT)
        self._silent.discard(client)
        if result is None or not fl_ctx.get_prop(AppConstants.AGGREGATION_ACCEPTED):
            self._round.failure("not accepted by the server", client)
            return
        update = from_shareable(result)
        if update.data_kind not in _KINDS:
            self._round.failure(
                f"neither weights nor their differences: {update.data_kind}", client
            )
            return
        weight = update.get_meta_prop(MetaKey.NUM_STEPS_CURRENT_ROUND)
        self._round.upload(client, _tensors(update), weight, _KINDS[update.data_kind])

    def _close(self) -> None:
        assert self._round is not None
        for client in sorted(self._silent):
            self._round.failure("no reply", client)
        self._round.close()
        self._round = None


def _client(fl_ctx: FLContext) -> str:
    """Return the name of the site that a context is about."""
    peer = fl_ctx.get_peer_context()
    if peer is not None:
        return peer.get_identity_name()
    return str(fl_ctx.get_prop(ReservedKey.IDENTITY_NAME))


def _tensors(update: DXO) -> Tensors:
    """Return the tensors; those that a client leaves out are None."""
    return {name: value for name, value in update.data.items() if value is not None}
