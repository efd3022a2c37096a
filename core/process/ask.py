"""Call plugin code in a separate process: the result is a JSON value, or one message that names the
plugin.
"""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from fedbench.core.contract.errors import UserError
from fedbench.core.contract.hooks import DISTRIBUTION
from fedbench.core.process.channel import TimeLimits, at_work, pass_on_interrupt, raised_by
from fedbench.core.words import explain, one_line, printable_lines

if TYPE_CHECKING:
    from fedbench.core.process.channel import Channel
    from fedbench.core.process.child import Child

SECONDS = "FEDBENCH_PLUGIN_SECONDS"
_DEFAULT_S = 60.0
# factors for loading data and writing reports, which may download and compute
_LONG_CPU = 30
_LONG_IDLE = 5
_LONGEST_LINE = 1000  # characters of what is printed there

T = TypeVar("T")


class Ended(UserError):
    """Plugin code ended its process, or was stopped at a time limit (``timed_out``)."""

    def __init__(self, message: str, timed_out: bool) -> None:
        super().__init__(message)
        self.timed_out = timed_out


class Defect(Exception):
    """A defect of fedbench, with the traceback of the process where it was raised."""


@dataclass(frozen=True)
class Answer:
    """A JSON value, or the error raised instead."""

    value: Any = None
    error: Exception | None = None

    def get(self) -> Any:
        """Return the value or raise the error."""
        if self.error is not None:
            raise self.error
        return self.value


def plugin_limits() -> TimeLimits:
    """Return the limits of an import, a hook or a constructor of a plugin. Raises ``UserError`` for
    an invalid ``SECONDS``.
    """
    text = os.environ.get(SECONDS, "")
    try:
        seconds = float(text or _DEFAULT_S)
    except ValueError:
        seconds = -1.0
    if not 0 < seconds < 1e9:
        raise UserError(
            f"{SECONDS}={one_line(text, 40)}: expected a number of seconds above 0; the default is "
            f"{_DEFAULT_S:g}"
        )
    return TimeLimits(cpu_s=seconds, idle_s=seconds)


def long_plugin_limits() -> TimeLimits:
    """Return the limits of loading data or writing a report: by default half an hour of CPU, five
    minutes without activity.
    """
    seconds = plugin_limits().cpu_s or 0.0
    return TimeLimits(cpu_s=_LONG_CPU * seconds, idle_s=_LONG_IDLE * seconds)


def ask(question: Callable[[], Any]) -> Any:
    """Return the result of ``question()``, a JSON value, from a separate process.

    Raises its ``UserError`` and ``OSError``, and :class:`Ended` naming the plugin at work where the
    process ended.
    """
    (answer,) = ask_each([None], lambda _: question())
    return answer.get()


def ask_apart(party: str, distributions: Iterable[str], question: Callable[[], Any]) -> Any:
    """Return the result of ``question()``, which runs the code of ``party``, components of these
    distributions: from this process where all are fedbench's own, else as :func:`ask`.

    No module of another package is imported in this process, where it could change fedbench's.
    """

    def named() -> Any:
        with at_work(party):
            return question()

    return question() if is_own(distributions) else ask(named)


def is_own(distributions: Iterable[str]) -> bool:
    """Return whether all distributions are fedbench's own."""
    return all(distribution.partition(" ")[0] == DISTRIBUTION for distribution in distributions)


def ask_each(
    items: Sequence[T], question: Callable[[T], Any], quiet: bool = False
) -> Iterator[Answer]:
    """Yield ``question(item)`` of every item, in order. All run in one process; where an item ends
    it, a new one begins with the next. ``quiet``: drop its output.
    """
    from fedbench.core.process.child import Child, Lines

    show: Callable[[str], None] = (lambda line: None) if quiet else _show
    answered = 0
    while answered < len(items):
        lines = Lines(show)
        child = Child(partial(_serve, items[answered:], question), TimeLimits(), printed=lines.take)
        complete = False
        for message in child:
            if message.kind == "traceback":
                print(message.value, file=sys.stderr)
            elif message.kind == "all":
                complete = True
            else:
                yield _answer(message.kind, message.value)
                answered += 1
        lines.end()
        if not complete and answered < len(items):
            yield Answer(error=_ended(child))
            answered += 1


class Question:
    """``question()`` at work in a separate process, looked at now and then with ``answer``."""

    def __init__(self, question: Callable[[], Any]) -> None:
        from fedbench.core.process.child import Child, Lines

        self._lines = Lines(_show)
        work = partial(_serve, [None], lambda _: question())
        self._child = Child(work, TimeLimits(), printed=self._lines.take)

    def answer(self) -> Answer | None:
        """Return the answer; None while there is none."""
        for message in self._child.poll():
            if message.kind == "traceback":
                print(message.value, file=sys.stderr)
            else:
                return _answer(message.kind, message.value)
        return Answer(error=_ended(self._child)) if self._child.ended else None

    def end(self) -> None:
        """Kill the process; to be called once."""
        self._child.end()
        self._lines.end()


def _show(line: str) -> None:
    print(printable_lines(line)[:_LONGEST_LINE], file=sys.stderr)


def _ended(child: Child) -> Ended:
    party = child.party or "a plugin's code, or fedbench's own"
    ending = child.ending or "it ended the process with status 0"
    remedy = f"; {SECONDS} sets how long it may take" if child.timed_out else ""
    return Ended(f"{party}: {ending}{remedy}", child.timed_out)


def _serve(items: Sequence[T], question: Callable[[T], Any], channel: Channel) -> None:
    """Send an answer per item, in the forked process."""
    if torch := sys.modules.get("torch"):
        torch.set_num_threads(1)  # threads do not survive a fork: torch would wait for them forever
    pid = os.getpid()
    for item in items:
        kind, value = _result(question, item)
        if os.getpid() != pid:  # a fork that a plugin made: only the original answers
            os._exit(0)
        try:
            channel.send(kind, value)
        except (TypeError, ValueError) as error:
            channel.send(
                "user error",
                [f"a plugin's code returned a value that is not plain data: {explain(error)}"],
            )
    channel.send("all")


def _result(question: Callable[[T], Any], item: T) -> tuple[str, Any]:
    try:
        return "value", question(item)
    except UserError as error:
        return "user error", list(error.messages)
    except BaseException as error:  # in a forked process nothing else has a reader
        pass_on_interrupt(error)
        if party := raised_by(error):
            return "user error", [f"{party}: {explain(error)}"]
        if isinstance(error, OSError) and error.errno is not None:
            place = error.filename and str(error.filename)
            return "os error", [error.errno, error.strerror, place]
        return "defect", traceback.format_exc()


def _answer(kind: str, value: Any) -> Answer:
    if kind == "value":
        return Answer(value)
    if kind == "user error":
        return Answer(error=UserError(*value))
    if kind == "os error":
        return Answer(error=OSError(*value))
    return Answer(error=Defect(value))
