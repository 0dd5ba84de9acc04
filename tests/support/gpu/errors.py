"""What the stand-in raises: cupy's errors under cupy's names, and one of its own."""


class Misuse(AssertionError):  # noqa: N818 - not of the program, but of the GPU
    """What a GPU would not report: it would compute something wrong, or fail later."""


class CUDARuntimeError(RuntimeError):
    """As ``cupy.cuda.runtime.CUDARuntimeError``."""

    def __init__(self, status: int) -> None:
        self.status = status
        super().__init__(NAMES.get(status, f"cudaError {status}"))

    def __reduce__(self) -> tuple[type, tuple[int]]:
        return type(self), (self.status,)


class CUDADriverError(RuntimeError):
    """As ``cupy.cuda.driver.CUDADriverError``."""

    def __init__(self, status: int) -> None:
        self.status = status
        super().__init__(f"CUDA_ERROR {status}")


class OutOfMemoryError(MemoryError):
    """As ``cupy.cuda.memory.OutOfMemoryError``."""

    def __init__(self, size: int, total: int, limit: int = 0) -> None:
        message = f"Out of memory allocating {size:,} bytes (allocated so far: {total:,} bytes"
        super().__init__(message + (f", limit set to: {limit:,} bytes)." if limit else ")."))
        self._size, self._total, self._limit = size, total, limit


class CompileException(Exception):  # noqa: N818 - cupy's name
    """As ``cupy.cuda.compiler.CompileException``."""

    def __init__(
        self, msg: str, source: str, name: str, options: tuple[str, ...], backend: str = "nvcc"
    ) -> None:
        super().__init__(msg)
        self._msg, self.source, self.name = msg, source, name
        self.options, self.backend = options, backend

    def get_message(self) -> str:
        return self._msg


INVALID_VALUE = 1
NOT_INITIALIZED = 3
INVALID_DEVICE = 101
INVALID_HANDLE = 400
CAPTURE_UNSUPPORTED = 900
CAPTURE_INVALIDATED = 901
CAPTURE_UNMATCHED = 903
CAPTURE_UNJOINED = 904
CAPTURE_IMPLICIT = 906
CAPTURED_EVENT = 907

NAMES = {
    INVALID_VALUE: "cudaErrorInvalidValue: invalid argument",
    NOT_INITIALIZED: "cudaErrorInitializationError: initialization error",
    INVALID_DEVICE: "cudaErrorInvalidDevice: invalid device ordinal",
    INVALID_HANDLE: "cudaErrorInvalidResourceHandle: invalid resource handle",
    CAPTURE_UNSUPPORTED: "cudaErrorStreamCaptureUnsupported: operation not permitted when stream "
    "is capturing",
    CAPTURE_INVALIDATED: "cudaErrorStreamCaptureInvalidated: operation failed due to a previous "
    "error during capture",
    CAPTURE_UNMATCHED: "cudaErrorStreamCaptureUnmatched: capture was not ended in the same stream "
    "as it began",
    CAPTURE_UNJOINED: "cudaErrorStreamCaptureUnjoined: capturing stream has unjoined work",
    CAPTURE_IMPLICIT: "cudaErrorStreamCaptureImplicit: operation would make the legacy stream "
    "depend on a capturing blocking stream",
    CAPTURED_EVENT: "cudaErrorCapturedEvent: operation not permitted on an event last recorded in "
    "a capturing stream",
}
