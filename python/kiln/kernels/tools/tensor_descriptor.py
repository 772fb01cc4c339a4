"""`TensorDescriptor`, where ports import it from."""

from kiln.kernels.descriptor import TensorDescriptor

__all__ = ["TensorDescriptor"]
