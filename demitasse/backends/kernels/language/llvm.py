"""LLVM's instructions by llvmlite, or placeholders for the types that modules of kernels name.

Without llvmlite nothing is compiled (``compiler.status``), and schedules can still be imported.
"""

try:
    from llvmlite import ir
except ImportError:

    class _Absent:
        def __init__(self, *arguments: object) -> None:
            del arguments

    class ir:  # type: ignore[no-redef]  # noqa: N801
        """Types that are named while modules are imported."""

        Constant = FloatType = IntType = _Absent


__all__ = ["ir"]
