"""Conformance tests for authors of backends.

::

    python -m demitasse.testing.conformance --device mine:0
    python -m demitasse.testing.conformance --device mine:0 --dtype float32 -k "layers or memory"

They need pytest, but no files and no network. Contents:

- ``test_arrays.py``: arrays and transfers, as specified by ``demitasse.backends.base.Backend``
- ``test_memory.py``: synchronization of host and device memory, live views
- ``test_layers.py``: every layer type, forward and backward, compared with numpy
- ``test_nets.py``: chains of in-place layers, moving a net, weights, solvers

All arguments except ``--device`` and ``--dtype`` go to pytest.
"""
