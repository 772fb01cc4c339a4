"""Kernels in Triton's language as people write them, none of which the compiler was tuned on, each with cases.

Triton runs copies of the files with its own imports (`benches/untuned_kernels.py`).
"""

FAMILIES = ["rows", "elements", "matmuls", "attention"]
