"""Base of this backend's Steps."""

from collections.abc import Iterable, Sequence
from functools import cached_property
from typing import ClassVar, Generic, TypeVar

from demitasse.backends.cpu.arguments import InputArg, OutputArg, ScratchArg, written_layout
from demitasse.backends.cpu.engine import Engine
from demitasse.backends.cpu.kernel_calls import KernelCall, kernel_tuning
from demitasse.backends.cpu.layout import Layout
from demitasse.backends.kernels.language.structs import CompiledKernel
from demitasse.backends.ops import Activation, Op
from demitasse.backends.step import LayoutUse, Operand, Operands, Step, decline_if, decline_in_place

O = TypeVar("O", bound=Op)  # noqa: E741 - the type of the operation

TITLES = {
    "gelu": "GELU", "hard_swish": "HardSwish", "relu": "ReLU", "tanh": "TanH", "sigmoid": "Sigmoid",
    "swish": "Swish",
}  # fmt: skip


class CpuStep(Step[Engine, O], Generic[O]):
    """Calls of kernels that run in order, forward and backward.

    A Step whose pass does more states its own ``replayable`` and ``backward_replayable``.

    Attributes:
        followers: Names of the fused operations after the first.
        kept_bytes: Bytes that the Step uses besides those of the calls.

    Raises:
        Declined: The data is not float32, or there is none.
    """

    needs_bottom: ClassVar[bool] = False
    """True to decline in-place layers."""

    follows_bf16: ClassVar[bool] = False
    """True to follow the layouts of others wherever blobs may be in bfloat16."""

    def __init__(self, engine: Engine, op: O, at: Operands) -> None:
        super().__init__(engine, op, at)
        decline_if(op.dtype != "float32", f"{op.dtype}; kernels take float32")
        message = "an empty blob; kernels take those with elements"
        decline_if(any(blob.count == 0 for blob in (*at.bottom, *at.top)), message)
        if self.needs_bottom:
            decline_in_place(at, "kernels need a top of their own")
        self.forward_calls: list[KernelCall] = []
        self.backward_calls: list[KernelCall] = []
        self.followers: Sequence[str] = ()
        self.kept_bytes = 0
        self._asked = set[bool]()

    @cached_property
    def rounds(self) -> bool:
        """True if blobs are in bfloat16 where all agree."""
        return kernel_tuning(self.engine, storage=self.at.storage).rounds

    @property
    def follows_layouts(self) -> bool:
        return self.follows_bf16 and self.rounds

    @property
    def replayable(self) -> bool:
        return True

    @property
    def backward_replayable(self) -> bool:
        return not self.portable_gradient

    @property
    def code(self) -> str:
        return " + ".join([_names(self.forward_calls), *self.followers])

    @property
    def backward_code(self) -> str:
        return "portable" if self.portable_gradient else _names(self.backward_calls)

    @property
    def workspace(self) -> int:
        calls = (*self.forward_calls, *self.backward_calls)
        return self.kept_bytes + sum(call.workspace for call in calls)

    def layout_uses(self, *, backward: bool) -> Iterable[LayoutUse]:
        calls = self.backward_calls if backward else self.forward_calls
        return [use for call in calls for use in call.layout_uses]

    def kernels_to_compile(self, *, backward: bool) -> list[CompiledKernel]:
        """Return the kernels of a pass that are known before it runs; none if called again."""
        if backward in self._asked:
            return []
        self._asked.add(backward)
        calls = self.backward_calls if backward else self.forward_calls
        return [kernel for call in calls for kernel in call.kernels()]

    def in_and_out(self, x: Layout, y: Layout) -> tuple[InputArg, OutputArg]:
        """Return the arguments for the data of the first bottom and the first top."""
        at = self.at
        return InputArg(at.bottom[0], x), OutputArg(at.top[0], y)

    def gradients(self, x: Layout, y: Layout) -> tuple[InputArg, OutputArg | ScratchArg]:
        """Return the arguments for the gradients of the first top and the first bottom.

        That of a bottom whose gradient is not wanted is in scratch memory.
        """
        at = self.at
        dx = OutputArg(at.bottom[0], x, diff=True) if at.propagate_down[0] else ScratchArg(x)
        return InputArg(at.top[0], y, diff=True), dx

    def expected(
        self, blob: Operand, shape: tuple[int, ...] | None = None, *, diff: bool = False
    ) -> Layout:
        """Return the layout in which a Step writes a blob's data or gradient; C order if unknown.

        Contents in another layout are converted.
        """
        memory = blob.diff_memory if diff else blob.data_memory
        return written_layout(self.at.layouts, memory, shape or blob.shape)

    def forward(self) -> None:
        for call in self.forward_calls:
            call()

    def backward(self) -> None:
        for call in self.backward_calls:
            call()


class FusedStep(CpuStep[O]):
    """The forward pass of fused operations; each operation's own Step computes its gradient."""

    def __init__(
        self, engine: Engine, op: O, at: Operands, call: KernelCall, followers: Sequence[str]
    ) -> None:
        super().__init__(engine, op, at)
        self.forward_calls = [call]
        self.followers = followers


def op_title(op: Op) -> str:
    """Return the name of an operation, as messages say it."""
    if isinstance(op, Activation):
        return TITLES.get(op.function, op.function)
    return type(op).__name__


def _names(calls: Iterable[KernelCall]) -> str:
    """Return the names of what calls run, each once."""
    return ", ".join(dict.fromkeys(call.code for call in calls if call.code)) or "nothing"
