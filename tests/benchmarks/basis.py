"""How long the basis of a 7B model's FFN output takes: (512, 11008), best of three.

python tests/benchmarks/basis.py
"""

import time

import torch

from more_cli.core.basis import draw_basis


def main() -> None:
    """Print seconds and how far A A^T is from I."""
    seconds = []
    for _ in range(3):
        started = time.perf_counter()
        A = draw_basis(512, 11008, seed=42)
        seconds.append(time.perf_counter() - started)
    error = float((A.double() @ A.double().T - torch.eye(512, dtype=torch.float64)).abs().max())
    print(f"(512, 11008): {min(seconds):.2f} s, |A A^T - I| at most {error:.1e}, {torch.get_num_threads()} threads")


if __name__ == "__main__":
    main()
