"""One thread for every test: small matrices gain nothing from more, and bytes depend on the number."""

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch

torch.set_num_threads(1)
