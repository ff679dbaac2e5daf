"""Run the harness: `python -m tests.faults [--full] [--seed N] [--only PART ...] [--out FILE]`."""

import os
import sys
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before torch is imported: its threads do not survive a fork
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from faults.run import main

if __name__ == "__main__":
    sys.exit(main())
