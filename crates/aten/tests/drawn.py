"""Calls drawn at random for `operators.py`: each family by a seed, which is part of the cases' names."""

import math
import random

import torch
from calls import case, normal

F32, F64, F16, BF16, U8 = torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.uint8

#: Factors that give the size again or twice the size of some axes, factors near one, and plain ones.
FACTORS = (1.12, 2.1, 1.0, 1 + 1e-7, 0.999999, 1.0001, 2.0, 0.5, 1 / 3, 1.5, 2 / 3)
#: The general kernel of images begins at 129 rows and columns together.
SIZES = (1, 2, 3, 5, 8, 9, 31, 64, 127)
MODES = {
    1: ("upsample_nearest1d", "_upsample_nearest_exact1d", "upsample_linear1d"),
    2: ("upsample_nearest2d", "_upsample_nearest_exact2d", "upsample_bilinear2d", "upsample_bicubic2d"),
    3: ("upsample_nearest3d", "_upsample_nearest_exact3d", "upsample_trilinear3d"),
}


def blend_rounding(x, have, taps):
    """How far rounding may take an interpolation of `taps` neighbours along each axis of `have` elements: positions have four roundings of
    up to `have` in the compute type, weights one to the element type. A weight is at most 1.2, and its slope at most 2; the weights of all
    taps sum to at most 1.4 in size."""
    compute = torch.finfo(F64 if x.dtype == F64 else F32).eps
    of_weight = sum(2 * (4 * n * compute / 2) + 1.2 * torch.finfo(x.dtype).eps / 2 for n in have)
    return taps * of_weight * 1.4 ** (len(have) - 1) * float(x.abs().max())


def resampling(seed, count):
    """Every mode, dimension, overload and element type: by a size, by a factor, and by both."""
    rng = random.Random(seed)
    while count > 0:
        dims = rng.randint(1, 3)
        mode = rng.choice(MODES[dims])
        exact = "nearest" in mode
        dtype = rng.choice((F32, F32, F64, F16, BF16) + ((U8,) if exact else ()))
        largest = {1: 127, 2: 127, 3: 9}[dims]
        have = [rng.choice([n for n in SIZES if n <= largest]) for _ in range(dims)]
        factors = [rng.choice((*FACTORS, rng.uniform(0.2, 3.0), rng.uniform(0.9, 1.1))) for _ in range(dims)]
        scaled = [math.floor(n * f) for n, f in zip(have, factors)]
        sizes = [rng.choice((1, n, 2 * n, rng.randint(1, 3 * n))) for n in have]
        if min(scaled) < 1 or math.prod(scaled) > 40_000 or math.prod(sizes) > 40_000:
            continue
        x = (normal(F32, 1, 2, *have) * 50).abs().to(U8) if dtype == U8 else normal(dtype, 1, 2, *have)
        corners = [] if exact else [rng.random() < 0.5]
        given = rng.choice(("size", "factor", "both"))
        if given == "size":
            arguments = (sizes, *corners) if rng.random() < 0.5 else (sizes, *corners, *[None] * dims)
            name = mode
        elif given == "factor":
            name, arguments = mode + ".vec", (None, *corners, factors)
        else:
            name, arguments = mode, (scaled, *corners, *factors)
        rounding = () if exact else (blend_rounding(x, have, 4 if "cubic" in mode else 2),)
        case(name, x, *arguments, rounding=rounding, drawn=f"seed {seed}: {have} by {given} {arguments}")
        count -= 1
