"""Run plugin code in a separate process: the result is plain data, or one message that names the plugin."""

from __future__ import annotations

import base64
import io
import os
import pickle
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from fedbench.core.contract.errors import UserError
from fedbench.core.process.channel import Patience, pass_on_interrupt, raised_by
from fedbench.core.words.explain import explain, one_line, printable_lines

if TYPE_CHECKING:
    from fedbench.core.process.channel import Channel
    from fedbench.core.process.child import Child


SECONDS = "FEDBENCH_PLUGIN_SECONDS"
_DEFAULT_S = 60.0
_LONG_CPU, _LONG_IDLE = 30, 5  # times as much for loading data and writing reports, which may download and compute
_LONGEST_LINE = 1000  # characters of what is printed there
_PLAIN = ("builtins", "collections", "datetime", "decimal", "fractions", "pathlib", "uuid")

T = TypeVar("T")
R = TypeVar("R")


class Ended(UserError):
    """Plugin code ended its process, or was stopped at the time limit (``timed_out``)."""

    def __init__(self, message: str, timed_out: bool) -> None:
        super().__init__(message)
        self.timed_out = timed_out


class Defect(Exception):
    """A defect of fedbench, with the traceback of the process where it was raised."""


@dataclass(frozen=True)
class Answer(Generic[R]):
    """A result, or the error raised instead."""

    value: R | None = None
    error: Exception | None = None

    def get(self) -> R:
        """The value; raises the error."""
        if self.error is not None:
            raise self.error
        return self.value  # type: ignore[return-value]


def patience() -> Patience:
    """The time limit of an import, a hook or a constructor of a plugin. Raises ``UserError`` for an invalid ``SECONDS``."""
    text = os.environ.get(SECONDS, "")
    try:
        seconds = float(text or _DEFAULT_S)
    except ValueError:
        seconds = -1.0
    if not 0 < seconds < 1e9:
        raise UserError(f"{SECONDS}={one_line(text, 40)}: expected a number of seconds above 0; the default is {_DEFAULT_S:g}")
    return Patience(cpu_s=seconds, idle_s=seconds)


def long_patience() -> Patience:
    """The time limit of loading data or writing a report: by default half an hour of CPU, five minutes without activity."""
    seconds = patience().cpu_s or 0.0
    return Patience(cpu_s=_LONG_CPU * seconds, idle_s=_LONG_IDLE * seconds)


def ask(question: Callable[[], R]) -> R:
    """The result of ``question()`` in a separate process. Raises its ``UserError`` and ``OSError``, and :class:`Ended` naming the
    plugin at work where the process ended."""
    (answer,) = ask_each([None], lambda _: question())
    return answer.get()


def ask_each(items: Sequence[T], question: Callable[[T], R], quiet: bool = False) -> Iterator[Answer[R]]:
    """``question(item)`` of every item, in order. All run in one process; where an item ends it, a new one begins with the next.
    ``quiet``: drop its output."""
    from fedbench.core.process.child import Child, Lines

    at, shown = 0, Lines(lambda line: print(printable_lines(line)[:_LONGEST_LINE], file=sys.stderr))
    while at < len(items):
        child = Child(partial(_serve, items[at:], question), Patience(), printed=(lambda _: None) if quiet else shown.take)
        whole = False
        for message in child:
            whole = message.kind == "all"
            if not whole:
                yield _answer(message.kind, message.value)
                at += 1
        shown.end()
        if not whole and at < len(items):
            yield Answer(error=_ended(child))
            at += 1


def _ended(child: Child) -> Ended:
    party = child.who or "a plugin's code, or fedbench's own"
    ending = child.ending or "it ended the process with status 0"
    remedy = f"; {SECONDS} sets how long it may take" if child.timed_out else ""
    return Ended(f"{party}: {ending}{remedy}", child.timed_out)


def _serve(items: Sequence[T], question: Callable[[T], Any], channel: Channel) -> None:
    """The forked process: send an answer per item."""
    _calm()
    pid = os.getpid()
    for item in items:
        kind, said = _said(question, item)
        if os.getpid() != pid:  # a fork that a plugin made: only the original answers
            os._exit(0)
        channel.send(kind, said)
    channel.send("all")


def _calm() -> None:
    """Threads do not survive a fork: torch would wait for them for ever."""
    if torch := sys.modules.get("torch"):
        torch.set_num_threads(1)


def _said(question: Callable[[T], Any], item: T) -> tuple[str, Any]:
    try:
        return "value", _packed(question(item))
    except UserError as error:
        return "user error", list(error.messages)
    except BaseException as error:  # in a forked process nothing else has a reader
        pass_on_interrupt(error)
        if who := raised_by(error):
            return "user error", [f"{who}: {explain(error)}"]
        if isinstance(error, OSError) and error.errno is not None:
            return "os error", [error.errno, error.strerror, None if error.filename is None else str(error.filename)]
        return "defect", traceback.format_exc()


def _answer(kind: str, value: Any) -> Answer[Any]:
    if kind == "value":
        try:
            return Answer(_unpacked(value))
        except _Foreign as error:
            return Answer(error=UserError(str(error)))
    if kind == "user error":
        return Answer(error=UserError(*value))
    if kind == "os error":
        return Answer(error=OSError(*value))
    return Answer(error=Defect(value))


class _Foreign(Exception):
    """An object of a plugin's class where plain data was expected."""


def _packed(value: Any) -> str:
    buffer = io.BytesIO()
    _Pickler(buffer, protocol=pickle.HIGHEST_PROTOCOL).dump(value)
    return base64.b64encode(buffer.getvalue()).decode()


def _unpacked(text: str) -> Any:
    return _Unpickler(io.BytesIO(base64.b64decode(text))).load()


def _ours(module: str) -> bool:
    return module in _PLAIN or module.startswith("fedbench.core.")


class _Pickler(pickle.Pickler):
    """Subclasses of text and numbers become plain ones: a ``StrEnum`` is a valid view."""

    def reducer_override(self, obj: Any) -> Any:
        if not _ours(type(obj).__module__):
            for plain in (str, int, float):
                if isinstance(obj, plain):
                    return plain, (plain(obj) if plain is not str else str.__str__(obj),)
        return NotImplemented


class _Unpickler(pickle.Unpickler):
    """Makes objects of the harness's own classes and of plain ones only: no plugin's module is imported here, and no class that a
    module of the harness has imported (``subprocess.Popen``) is accepted."""

    def find_class(self, module: str, name: str) -> Any:
        found = import_module(module) if _ours(module) else None
        for part in name.split("."):
            found = getattr(found, part, None)
        if not isinstance(found, type) or not _ours(found.__module__):
            raise _Foreign(f"'{one_line(f'{module}.{name}', 200)}' came back from a plugin where plain data was expected")
        return found
