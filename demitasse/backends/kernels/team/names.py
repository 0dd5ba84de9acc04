"""Names of the OpenMP functions that a team replaces, and of the system calls it makes."""

__all__ = ["HARMLESS", "OURS", "SYSTEM", "original"]

OURS = {
    "GOMP_parallel_start": "start",
    "GOMP_parallel_end": "end",
    "GOMP_parallel": "parallel",
    "GOMP_barrier": "barrier",
    "GOMP_loop_static_start": "loop_start",
    "GOMP_loop_static_next": "loop_next",
    "GOMP_loop_end_nowait": "loop_end",
    "omp_get_thread_num": "part",
    "omp_get_num_threads": "parts",
    "omp_in_parallel": "in_parallel",
}
"""The functions of the OpenMP runtime that ours take the place of."""

HARMLESS = {
    "GOMP_atomic_end", "GOMP_atomic_start", "GOMP_critical_end", "GOMP_critical_name_end",
    "GOMP_critical_name_start", "GOMP_critical_start", "omp_get_max_threads",
    "omp_get_num_procs", "omp_get_wtime", "omp_set_num_threads",
}  # fmt: skip
"""Those that do the same for threads that are not its own."""

SYSTEM = (
    "pthread_create", "pthread_detach", "pthread_getspecific", "pthread_setspecific", "syscall",
)  # fmt: skip
"""System functions that the team's code calls."""


def original(name: str) -> str:
    """Return by which name a function of the OpenMP runtime is called by ours."""
    return f"libgomp_{name}"
