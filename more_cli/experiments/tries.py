"""The settings that calibration tries of each editor: equally many, around its own."""

from __future__ import annotations

from collections.abc import Sequence

Tries = tuple[tuple[str, ...], ...]


def tries(*pairs: tuple[str, ...], **values: Sequence[float | str]) -> Tries:
    """Return settings that change one constant each, then those of several.

    `__` in a name stands for the dot of a recipe's table.
    """
    single = tuple((f"{key.replace('__', '.')}={value}",) for key, listed in values.items() for value in listed)
    return single + pairs


TRIES = 8
"""Settings that calibration tries of every editor beside its own: the same effort for all."""
MORE = tries(
    ("margin=3.0", "default.lambda_rel=1.0"), margin=(1.0, 3.0, 6.0), default__lambda_rel=(0.2, 1.0, 5.0, 0.002)
)
NAIVE = tries(margin=(1.0, 3.0, 6.0, 12.0), rho=(0.5, 1.5), max_write=(0.02, 0.1))
FIXED_STEP = tries(
    ("default.step=0.3", "default.lambda=20.0"),
    default__step=(0.03, 0.3, 0.01),
    default__lambda=(200.0, 20.0, 2.0, 20000.0),
)
FT_L = tries(("rate=0.0003", "steps=400"), rate=(0.003, 0.0003, 0.01), steps=(10, 100, 200, 400))
FT_M = tries(("rate=0.0003", "steps=50"), rate=(0.003, 0.0003, 0.0001, 0.00003), steps=(10, 50, 100))
LORA = tries(("rate=0.003", "steps=5"), rate=(0.003, 0.0003), steps=(5, 20), rank=(2, 4, 16))
LORA_ALL = tries(("rate=0.003", "steps=40"), rate=(0.003, 0.0003, 0.01), steps=(10, 40), rank=(4, 16))
LIVEEDIT = tries(rate=(0.0003, 0.003), rank=(2, 8), depth=(0.5, 0.8), width=(32, 128))
MEND = tries(rate=(0.00003, 0.0003), edit_weight=(0.03, 0.3), alpha_rate=(0.00003, 0.0003), layers=(2, 4))
ULTRA = tries(step=(1.0, 2.0, 6.0, 10.0), ridge=(0.3, 3.0), layers=(1, 3))
SCOPE = tries(("eta=0.2", "ridge=30.0"), eta=(0.1, 1.0), ridge=(0.1, 10.0, 100.0), eta_shared=(0.1, 3.0))
IKE = tries(demonstrations=(1, 3, 4), reach=(0.35, 0.65, 0.8), depth=(0.5, 0.8))
GRACE = tries(rate=(0.3, 3.0), quantile=(0.03, 0.3), replace=("last", "all"), depth=(0.45, 0.7))
WISE = tries(rate=(0.3, 3.0), ratio=(0.5, 0.9), in_margin=(1.0, 4.0), depth=(0.6, 0.85))
ALPHA = tries(share=(0.5, 0.7, 0.9, 0.999), ridge=(0.001, 0.1), rate=(0.1, 0.5))
MEMIT = tries(("rate=1.0", "clamp=0.4"), weight=(0.03, 0.3), rate=(0.2, 1.0), clamp=(0.2, 0.4, 1.5))
ROME = tries(
    ("rate=0.25", "decay=0.0001"), ("rate=0.25", "clamp=4.0"), rate=(0.1, 0.25, 0.5, 2.0), clamp=(32.0,), decay=(0.1,)
)
SERAC = tries(none=(5.0, 7.0, 14.0, 20.0), rate=(0.001, 0.006), locality=(0.02, 1.0))
