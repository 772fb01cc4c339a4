"""Stand-ins for tensors, to compile kernels without data."""

from __future__ import annotations

from typing import Any


class MockTensor:
    """A tensor of a dtype without memory, whose address is a multiple of all that matters."""

    def __init__(self, dtype: Any) -> None:
        self.dtype = dtype

    nbytes = 0

    def data_ptr(self) -> int:
        return 0

    @staticmethod
    def wrap(value: Any) -> Any:
        return mocked(value)


class TypedTensor(MockTensor):
    """A tensor of a dtype, sizes and strides, without memory."""

    def __init__(self, dtype: Any, shape: list[int], strides: list[int]) -> None:
        super().__init__(dtype)
        self.shape = shape
        self.strides = strides

    def stride(self) -> list[int]:
        return self.strides


def mocked(value: Any) -> Any:
    """A tensor's stand-in for a dtype of torch; other values as they are."""
    return MockTensor(value) if type(value).__module__ == "torch" and type(value).__name__ == "dtype" else value
