"""Demitasse beside other engines: the same net, weights and input, in turns on one machine.

``compare_peers.py`` is the command. Every engine runs in a process of its own (``worker.py``);
``rounds.py`` gives them turns, ``report.py`` writes down what came out.
"""
