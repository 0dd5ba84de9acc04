"""One process with one engine up to its first result.

    python -m peers.first ENGINE CASE SCALE FOLDER THREADS

It prints when the result was there, in seconds since 1970, and the peak of memory in MiB.
"""

import json
import logging
import os
import sys
import time
from pathlib import Path

from peers import memory
from peers.cases import Case
from peers.engines import find


def main() -> None:
    """Make the engine and do one pass."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what libraries print must not come before the answer
    logging.disable(logging.INFO)
    name, case, scale, folder, threads = sys.argv[1:]
    engine = find(name).make(Case.parse(case, int(scale)), Path(folder), int(threads))
    engine.run()
    answers.write(json.dumps({"at": time.time(), "peak": memory.peak()}))


if __name__ == "__main__":
    main()
