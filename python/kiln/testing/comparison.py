"""Compares results with what they should be."""

from __future__ import annotations

from typing import Any


def assert_close(
    x: Any, y: Any, atol: float | None = None, rtol: float | None = None, err_msg: str = ""
) -> None:
    """Fails unless two tensors, arrays or numbers are close; NaN equals NaN."""
    import numpy as np
    import torch

    def array(value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            value = value.float() if value.dtype == torch.bfloat16 else value
            return value.detach().cpu().numpy()
        return np.asarray(value)

    atol = 1e-2 if atol is None else atol
    rtol = 0.0 if rtol is None else rtol
    np.testing.assert_allclose(array(x), array(y), atol=atol, rtol=rtol, equal_nan=True, err_msg=err_msg)
