"""What of a tally is shown, in lines of so many columns of a terminal. Every name in them is printable text, however long."""

from __future__ import annotations

from collections.abc import Sequence

from fedbench.core.cli.standings import Standing
from fedbench.core.cli.tally import Failure, Running, Tally
from fedbench.core.execution.forecast import in_words
from fedbench.core.experiment.job import Job
from fedbench.core.experiment.process import log_path
from fedbench.core.words.explain import one_line, printable
from fedbench.core.words.narrow import columns, cut, fitted, padded

_NAME = 4  # columns that are left to a name, however many others there are
_BAR = 24
_MOST_STANDINGS = 4
_REASON = 300
_WHOLE_NAME = 1000


def lines(tally: Tally, title: str, now: float, width: int, height: int) -> list[str]:
    """The whole display, no line longer than ``width``; of many runs, as many as a screen of this ``height`` has room for."""
    standings = standing_lines(tally, width)
    room = max(height - 4 - len(standings), 1)
    running = list(tally.running.values())
    shown = [running_line(run, width) for run in running[: room if len(running) <= room else max(room - 1, 1)]]
    if more := len(running) - len(shown):
        shown.append(f"  and {more} more")
    counted = counts(tally)
    bar = _bar(tally.done / tally.cells if tally.cells else 1.0, min(_BAR, width // 5))
    head = f"{cut(printable(title), max(width - columns(counted) - columns(bar) - 2, _NAME))} {bar} {counted}"
    return [cut(line, width) for line in (head, f"  {clock(now - tally.began)}, {left(tally, now)}", *shown, *standings)]


def counts(tally: Tally) -> str:
    """``84/210 cells, 12/30 runs, 1 failed``."""
    more = [f"{n} {what}" for n, what in ((tally.failed, "failed"), (tally.skipped, "skipped")) if n]
    return ", ".join([f"{tally.done}/{tally.cells} cells", f"{tally.runs_done}/{tally.runs} runs", *more])


def clock(seconds: float) -> str:
    """``1:02:03``, ``2:03``."""
    whole = int(max(seconds, 0.0))
    hours = f"{whole // 3600}:{whole // 60 % 60:02d}" if whole >= 3600 else f"{whole // 60}"
    return f"{hours}:{whole % 60:02d}"


def left(tally: Tally, now: float) -> str:
    """Time left, in words."""
    found = tally.left(now)
    return "time left not known yet" if found is None else in_words(found)


def running_line(run: Running, width: int) -> str:
    """What a worker is at."""
    state = doing(run, width // 5)
    room = width - 4 - columns(state)
    return f"  {padded(who(run.job, room), min(room, width // 2))}  {state}"


def doing(run: Running, room: int = 30) -> str:
    """``round 3 of 30``, or ``attack fedmia-ii, 2 of 7``; the attack's name in so many columns."""
    if run.attack:
        n = len(run.job.cells)
        return f"attack {cut(printable(run.attack), room)}, {min(run.judged + 1, n)} of {n}"
    return f"round {run.round} of {run.job.setting.federation.rounds}" if run.round else "starting"


def who(job: Job, room: int) -> str:
    """Setting, coalition, defense, adversary and seed of a run, in so many columns; the longest names give way first."""
    parts = [job.setting.name, job.coalition, job.defense.label, *([job.attacker.label] if job.attacker else [])]
    names = [printable(part) for part in parts]
    rest = columns(f"/ {' vs ' if job.attacker else ''} seed {job.seed}")
    widths = fitted([columns(name) for name in names], room - rest, [_NAME] * len(names))
    setting, coalition, defense, *adversary = (cut(name, w) for name, w in zip(names, widths, strict=True))
    return f"{setting}/{coalition} {defense}{''.join(f' vs {a}' for a in adversary)} seed {job.seed}"


def standing_lines(tally: Tally, width: int) -> list[str]:
    """The best and the worst row of each setting and coalition; none before two rows can be compared."""
    found = tally.standings.all()
    if not found:
        return []
    n, of = tally.before + tally.done, tally.before + tally.cells
    shown = [_standing(standing, width) for standing in found[-_MOST_STANDINGS:]]
    more = [f"  and {len(found) - len(shown)} more settings and coalitions"] if len(found) > len(shown) else []
    return [f"so far, {n} of {of} cells, lowest and highest mean AUC:", *shown, *more]


def _standing(standing: Standing, width: int) -> str:
    (best, low), (worst, high) = standing.best, standing.worst
    names = [printable(name) for name in (standing.setting, standing.coalition, best, worst)]
    attacks = f"{standing.attacks} attack{'s' * (standing.attacks != 1)}"
    rest = columns(f"  /:  {low:.3f}  {high:.3f} ({standing.rows} rows, {attacks})") + len(" to ")
    setting, coalition, best, worst = map(cut, names, fitted([columns(n) for n in names], width - rest, [_NAME] * 4))
    return f"  {setting}/{coalition}: {best} {low:.3f} to {worst} {high:.3f} ({standing.rows} rows, {attacks})"


def failure_line(failure: Failure) -> str:
    """Which cells, why, and where the whole of it is."""
    labels = [printable(cell.attack.label) for cell in failure.cells]
    which = labels[0] if len(labels) == 1 else f"{len(labels)} attacks ({one_line(', '.join(labels), 80)})"
    outcome = f"{failure.outcome}, as the adversary inside wanted" if failure.wanted else failure.outcome
    said = f"{outcome}: {who(failure.job, _WHOLE_NAME)}, {which}: {one_line(failure.reason, _REASON)}"
    return f"{said}; see {' and '.join(_where(failure))}"


def _where(failure: Failure) -> list[str]:
    log, more = log_path(failure.job), len(failure.cells) - 1
    record = f"records/{failure.cells[0].stem}.json{f' and {more} more' if more else ''}"
    return [record, *([f"logs/{log.name}"] if log.exists() and f"logs/{log.name}" not in failure.reason else [])]


def log_line(tally: Tally, now: float, text: str) -> str:
    """A line for a log: the same facts without a screen."""
    rest = f", {left(tally, now)}" if tally.done < tally.cells else ""
    return f"[{counts(tally)}; {clock(now - tally.began)}{rest}] {text}"


def running_words(running: Sequence[Running], most: int = 3) -> str:
    """What the workers are at, of many the first."""
    said = [f"{who(run.job, _WHOLE_NAME)} ({doing(run)})" for run in running[:most]]
    return ", ".join([*said, *([f"{len(running) - most} more"] if len(running) > most else [])]) or "nothing yet"


def _bar(share: float, room: int) -> str:
    full = round(share * room)
    return "█" * full + "░" * (room - full)
