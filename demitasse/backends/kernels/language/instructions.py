"""Modules, functions and their instructions, as text in LLVM's language.

llvmlite has objects for them too. Kernels have thousands of instructions, and making an object of
each takes a third of the time that LLVM needs to compile them.

Source: LLVM Language Reference Manual.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

WORD = "i64"


class VectorKind(str):
    """LLVM's type of a vector.

    Attributes:
        lanes: Number of elements.
        element: Type of an element.
    """

    __slots__ = ("element", "lanes")

    lanes: int
    element: str


@cache
def vector_kind(count: int, element: str) -> VectorKind:
    """Return the type of a vector of ``count`` elements."""
    kind = VectorKind(f"<{count} x {element}>")
    kind.element, kind.lanes = element, count
    return kind


class Module:
    """Functions that are compiled together.

    Args:
        name: Name of the module.
        attributes: Attributes of all functions.

    Attributes:
        variables: Definitions of its global variables.
    """

    def __init__(self, name: str, attributes: str = "") -> None:
        self.name, self.attributes = name, attributes
        self.functions: list[Code] = []
        self.variables: list[str] = []
        self._declared: dict[str, str] = {}

    def declare(self, name: str, result: str, *kinds: str) -> None:
        """Declare an external function, unless it is declared."""
        if name not in self._declared:
            self._declared[name] = f"declare {result} @{name}({', '.join(kinds)})"

    def __str__(self) -> str:
        parts = [*self.variables, *self._declared.values(), *map(str, self.functions)]
        return "\n".join([f"; {self.name}", *parts, ""])


class Block:
    """Instructions without a jump between them.

    Attributes:
        label: Name of the block.
        lines: Its instructions.
        ended: True if the last instruction jumps or returns.
        pointers: Names of addresses as pointers, by the names of the addresses.
    """

    __slots__ = ("ended", "label", "lines", "pointers")

    def __init__(self, label: str) -> None:
        self.label, self.ended = label, False
        self.lines: list[str] = []
        self.pointers: dict[str, str] = {}


class Code:
    """Function of integers under construction; instructions are added to one of its blocks.

    Args:
        module: The function's module.
        name: Name of the function.
        count: Number of its arguments.
        result: Type of its result.
    """

    def __init__(self, module: Module, name: str, count: int, result: str) -> None:
        self.module = module
        self.arguments = [f"%a{number}" for number in range(count)]
        kinds = ", ".join(f"{WORD} {argument}" for argument in self.arguments)
        # nounwind: without tables for exceptions
        self._head = f'define {result} @"{name}"({kinds}) nounwind {module.attributes} {{'
        self._locals: list[str] = []
        self._blocks: list[Block] = []
        self._count = 0
        self.block = self.new_block()
        module.functions.append(self)

    def __str__(self) -> str:
        first, *others = self._blocks
        lines = [self._head, f"{first.label}:", *self._locals, *first.lines]
        for block in others:
            lines += f"{block.label}:", *block.lines
        return "\n".join([*lines, "}"])

    def new_block(self) -> Block:
        """Return a new block, behind all others."""
        self._blocks.append(Block(f"b{len(self._blocks)}"))
        return self._blocks[-1]

    def write(self, instruction: str) -> None:
        """Add an instruction without a result."""
        self.block.lines.append(instruction)

    def result(self, instruction: str) -> str:
        """Add an instruction; return the name of its result."""
        self._count += 1
        self.block.lines.append(f"%v{self._count} = {instruction}")
        return f"%v{self._count}"

    def local(self, kind: str) -> str:
        """Return the address of memory for a value on the stack."""
        self._count += 2
        place, address = f"%v{self._count - 1}", f"%v{self._count}"
        self._locals += f"{place} = alloca {kind}", f"{address} = ptrtoint ptr {place} to {WORD}"
        return address

    def call(self, name: str, result: str, arguments: Sequence[str]) -> str:
        """Call a function with typed arguments; return the name of its result, "" for void."""
        call = f'call {result} @"{name}"({", ".join(arguments)})'
        if result != "void":
            return self.result(call)
        self.write(call)
        return ""

    def pointer(self, address: str, offset: int) -> str:
        """Return the pointer to an address and a number of bytes."""
        known = self.block.pointers
        if address not in known:
            known[address] = self.result(f"inttoptr {WORD} {address} to ptr")
        if not offset:
            return known[address]
        return self.result(f"getelementptr i8, ptr {known[address]}, {WORD} {offset}")

    # -- control -------------------------------------------------------------------------------

    def jump(self, block: Block) -> None:
        """Go on in a block, unless this one has ended."""
        if not self.block.ended:
            self.write(f"br label %{block.label}")
            self.block.ended = True

    def branch(self, condition: str, yes: Block, no: Block) -> None:
        """Go on in one of two blocks."""
        self.write(f"br i1 {condition}, label %{yes.label}, label %{no.label}")
        self.block.ended = True

    def give(self, result: str = "void") -> None:
        """Return from the function, with a typed result."""
        self.write(f"ret {result}")
        self.block.ended = True


def phi(kind: str, sources: Sequence[tuple[str, Block]]) -> str:
    """Return the instruction of a value that depends on the block before."""
    return f"phi {kind} " + ", ".join(f"[ {text}, %{block.label} ]" for text, block in sources)
