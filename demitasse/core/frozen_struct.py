"""Immutable structs whose classes are cheap to define.

Python generates and compiles six functions for every frozen dataclass, which takes half a
millisecond; subclasses of ``FrozenStruct`` share theirs, which shortens start-up.
"""

from inspect import get_annotations
from typing import Any, ClassVar, NoReturn, dataclass_transform


@dataclass_transform(frozen_default=True)
class FrozenStruct:
    """Immutable fields; two structs are equal if their classes and values are.

    A subclass declares its fields like a dataclass; fields with a default may be omitted.

    Raises:
        TypeError: A field is missing, unknown, or given twice.
        AttributeError: A field is set or deleted after construction.
    """

    _fields: ClassVar[tuple[str, ...]] = ()
    _names: ClassVar[frozenset[str]] = frozenset()
    _defaults: ClassVar[dict[str, Any]] = {}

    def __init_subclass__(cls) -> None:
        kinds = get_annotations(cls)
        own = [name for name, kind in kinds.items() if "ClassVar[" not in str(kind)]
        cls._fields = tuple(dict.fromkeys((*cls._fields, *own)))
        cls._names = frozenset(cls._fields)
        cls._defaults = cls._defaults | {
            name: cls.__dict__[name] for name in own if name in cls.__dict__
        }

    def __init__(self, *values: Any, **named: Any) -> None:
        first = dict(zip(self._fields, values, strict=False))
        given = self._defaults | first | named
        if len(first | named) < len(values) + len(named) or given.keys() != self._names:
            kind, wanted = type(self).__name__, ", ".join(self._fields)
            message = f"{kind} takes {wanted}, each once; given were {values!r} and {named!r}"
            raise TypeError(message)
        self.__dict__.update(given)

    def _values(self) -> tuple[Any, ...]:
        mine = self.__dict__
        return tuple([mine[name] for name in self._fields])

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        if type(self) is not type(other) or not isinstance(other, FrozenStruct):
            return NotImplemented
        return self._values() == other._values()

    def __hash__(self) -> int:
        return hash(self._values())

    def __repr__(self) -> str:
        values = ", ".join(f"{name}={self.__dict__[name]!r}" for name in self._fields)
        return f"{type(self).__name__}({values})"

    def __setattr__(self, name: str, value: object) -> NoReturn:
        message = f"{type(self).__name__}.{name} cannot be set: the struct is immutable"
        raise AttributeError(message)

    def __delattr__(self, name: str) -> NoReturn:
        message = f"{type(self).__name__}.{name} cannot be deleted"
        raise AttributeError(message)
