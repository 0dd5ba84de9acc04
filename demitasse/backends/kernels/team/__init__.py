"""Thread team of kernels.

Kernels divide their work into one part per thread and end after the last part. A team that assigns
each part to a fixed thread lets all threads wait for the thread without a core on busy machines:
milliseconds in an operation that takes microseconds.

In this team, threads take parts dynamically: a thread that ends a part takes the next free part. A
region waits only for running parts.
"""
