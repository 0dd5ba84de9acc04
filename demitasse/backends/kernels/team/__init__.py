"""A team of threads for operations on the host that never waits for one that has not begun.

oneDNN's primitives, and kernels of our own, divide their work into parts, one for each thread, and
end when all are done. GCC's OpenMP runtime gives each part to a thread of its own. Where other
programs keep the cores busy, the others then wait for the one that gets no core, many milliseconds
in an operation that takes microseconds.

Here a part belongs to whoever takes it first. A thread that is through with its own takes the next
one that nobody has begun, so that a pass waits for nothing but parts that are being computed. The
parts are what they would be in OpenMP; so are their results, bit for bit.
"""

from demitasse.backends.kernels.team.installation import install

__all__ = ["install"]
