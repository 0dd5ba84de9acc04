"""Names of arguments in the overloads of OpenCV's functions."""

from collections.abc import Callable
from functools import wraps
from typing import Any, TypeVar, cast

F = TypeVar("F", bound=Callable[..., Any])


def also_named(**names: str) -> Callable[[F], F]:
    """Accept the names of another overload: ``also_named(layerName="layer")``; a decorator."""

    def decorated(function: F) -> F:
        @wraps(function)
        def call(*args: Any, **given: Any) -> Any:
            return function(*args, **{names.get(name, name): given[name] for name in given})

        return cast("F", call)

    return decorated
