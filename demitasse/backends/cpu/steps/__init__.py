"""Steps of the cpu backend, one file for each family of operations.

Classes and functions raise ``Declined`` where no kernel has fast code.
"""
