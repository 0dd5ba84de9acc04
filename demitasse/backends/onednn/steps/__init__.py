"""Steps of the oneDNN backend, one file for each family of operations.

Classes and functions raise ``Declined`` where neither the library nor a kernel has fast code.
"""
