"""Thread team that replaces GCC's OpenMP runtime and never waits for a thread without a core.

oneDNN's primitives and demitasse's kernels divide their work into one part per thread and end after
the last part. GCC's OpenMP runtime assigns each part to a fixed thread. On busy cores, all threads
then wait for the thread without a core: milliseconds in an operation that takes microseconds.

In this team, threads take parts dynamically: a thread that ends a part takes the next free part. A
region waits only for running parts. The parts and their results are OpenMP's, bit for bit.
"""

from demitasse.backends.kernels.team.installation import install

__all__ = ["install"]
