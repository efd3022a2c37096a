"""Methods that are worked out once for the same arguments, and forgotten with their object."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any, TypeVar, cast

Method = TypeVar("Method", bound=Callable[..., Any])


def once(method: Method) -> Method:
    """Of an object that does not change; the arguments are positional and hashable. ``functools.cache`` keeps the object."""

    @wraps(method)
    def remembered(self: Any, *args: Any) -> Any:
        memory: dict[Any, Any] = self.__dict__.setdefault(f"_{method.__name__}_of", {})
        if args not in memory:
            memory[args] = method(self, *args)
        return memory[args]

    return cast(Method, remembered)
