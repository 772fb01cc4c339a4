"""Tensors of more than 2^31 and 2^32 elements of each family, through `kiln.compile` on a GPU, against PyTorch image by image.

    python3 benches/large_check.py [--past 31,32] [--only NAME,…]

Images do not depend on each other, so that eager PyTorch computes what is compared in parts whose offsets fit 32 bits. All elements are
compared, each within the rounding of its type. Needs 60 GB of GPU memory.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable

import torch
import torch.nn.functional as F

import kiln

TOLERANCE = {torch.bfloat16: 2e-2, torch.float32: 2e-3, torch.float16: 4e-3}


class Of(torch.nn.Module):
    def __init__(self, f: Callable[..., torch.Tensor]) -> None:
        super().__init__()
        self.f = f

    def forward(self, *inputs: torch.Tensor) -> torch.Tensor:
        return self.f(*inputs)


def families() -> dict[str, tuple[Callable, tuple[int, ...], torch.dtype, tuple[int, ...] | None]]:
    """Function of images and of a weight, shape of an image, type, shape of the weight."""
    half, full = torch.bfloat16, torch.float32
    return {
        "avg_pool 11": (lambda x: F.avg_pool2d(x, 11), (64, 1600, 1600), half, None),
        "avg_pool 11 f32": (lambda x: F.avg_pool2d(x, 11), (64, 2048, 2048), full, None),
        "avg_pool 3 padded": (lambda x: F.avg_pool2d(x, 3, 2, 1), (64, 1600, 1600), half, None),
        "max_pool 2 relu": (lambda x: F.max_pool2d(F.relu(x), 2), (64, 1600, 1600), half, None),
        "conv 4 stride 4": (lambda x, w: F.conv2d(x, w, stride=4), (64, 800, 800), half, (16, 64, 4, 4)),
        "conv 3": (lambda x, w: F.conv2d(x, w, padding=1), (64, 800, 800), half, (16, 64, 3, 3)),
        "conv 1": (lambda x, w: F.conv2d(x, w), (64, 800, 800), half, (64, 64, 1, 1)),
        "conv 5x5x5 stride 3": (lambda x, w: F.conv3d(x, w, stride=3), (16, 100, 200, 200), half, (8, 16, 5, 5, 5)),
        "conv transposed": (lambda x, w: F.conv_transpose2d(x, w, stride=2, padding=1), (32, 400, 400), half, (32, 64, 4, 4)),
        "conv depthwise": (lambda x, w: F.conv2d(x, w, padding=1, groups=64), (64, 800, 800), half, (64, 1, 3, 3)),
        "softmax": (lambda x: torch.softmax(x, -1), (64, 1600, 1600), half, None),
        "sum": (lambda x: x.sum((-1, -2)), (64, 1600, 1600), half, None),
        "transpose": (lambda x: x.transpose(-1, -2).contiguous() * 2, (64, 1600, 1500), half, None),
        "flip": (lambda x: x.flip(-1) + 1, (64, 1600, 1600), half, None),
        "concatenation": (lambda x: torch.cat([x, x * 2], -1), (32, 1600, 1600), half, None),
        "resampling": (lambda x: F.interpolate(x, scale_factor=2.0, mode="bilinear"), (16, 800, 800), half, None),
        "cumulative sum": (lambda x: x.float().cumsum(-1), (64, 1600, 1600), half, None),
    }


def check(name: str, past: int) -> str:
    f, image, dtype, weight = families()[name]
    largest = max(torch.Size(image).numel(), 1)
    with torch.no_grad():
        shape = f(torch.zeros(1, *image, dtype=dtype, device="cuda"), *([] if weight is None else [torch.zeros(weight, dtype=dtype, device="cuda")])).shape
    largest = max(largest, shape.numel())
    n = (1 << past) // largest + 1
    torch.manual_seed(past)
    x = torch.empty(n, *image, dtype=dtype, device="cuda")
    for part in x:
        part.normal_()
    rest = [] if weight is None else [torch.randn(weight, dtype=dtype, device="cuda") / (weight[1] * torch.Size(weight[2:]).numel()) ** 0.5]
    with torch.no_grad():
        begin = time.time()
        fast = kiln.compile(Of(f), (x, *rest))
        took = time.time() - begin
        got = fast(x, *rest)
        torch.cuda.synchronize()
        worst, wrong = 0.0, 0
        for i in range(n):
            want = f(x[i : i + 1], *rest)
            off = (got[i : i + 1].float() - want.float()).abs() / want.float().abs().clamp(min=1)
            worst = max(worst, off.max().item())
            wrong += int((~(off <= TOLERANCE[dtype])).sum().item())
    verdict = "right" if wrong == 0 else f"WRONG in {wrong} of {got.numel()}"
    return f"{name}, {list(x.shape)} to {list(got.shape)} {str(dtype)[6:]}: {verdict}, largest error {worst:.1e}, compiled in {took:.1f} s"


def main() -> None:
    p = argparse.ArgumentParser()
    p.add_argument("--past", default="31,32")
    p.add_argument("--only")
    a = p.parse_args()
    failed = 0
    for past in map(int, a.past.split(",")):
        for name in families():
            if a.only and name not in a.only.split(","):
                continue
            try:
                said = check(name, past)
            except Exception as e:  # noqa: BLE001
                said = f"{name} past 2^{past}: FAILED {type(e).__name__}: {str(e)[:200]}"
            failed += "WRONG" in said or "FAILED" in said
            print(said, flush=True)
            torch.cuda.empty_cache()
    print(f"large tensors: {failed} failed")
    raise SystemExit(failed > 0)


if __name__ == "__main__":
    main()
