"""Does a backend keep the contract? Tests that the author of any backend runs.

::

    python -m demitasse.testing.conformance --device mine:0
    python -m demitasse.testing.conformance --device mine:0 --dtype float32 -k "layers or memory"

They need pytest, and neither files nor a network. What is checked:

- ``test_arrays.py``: what ``demitasse.backends.base.Backend`` says of arrays and transfers
- ``test_memory.py``: which side of a blob is newest, when it is copied, live views
- ``test_layers.py``: every type of layer, forward and backward, against numpy
- ``test_nets.py``: layers in place one after the other, moving a net, weights, solvers

Everything after ``--device`` and ``--dtype`` goes to pytest.
"""
