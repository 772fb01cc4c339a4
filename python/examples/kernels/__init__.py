"""Kernels in the language of `kiln.language`: one file for each computation, with its kernels, a function
that launches them, a reference in PyTorch, and benchmarks.

    cd python/examples
    python -m kernels.softmax        # prints the table of its benchmark

The files run on GPUs and on the CPU. `benches/kernels.py` measures all of them, and the same files
through Triton where it is installed: parameters annotated `kl.Array` are the only thing that Triton lacks.
"""

#: The examples, in the order of the guide.
EXAMPLES = [
    "vector_add",
    "softmax",
    "gelu",
    "dropout",
    "rms_norm",
    "layer_norm",
    "rotary",
    "cross_entropy",
    "matmul",
    "matmul_leaky_relu",
    "ladder",
    "persistent_matmul",
    "stream_k_matmul",
    "grouped_gemm",
    "cdist",
    "scaled_matmul",
    "int4_matmul",
    "attention",
    "paged_attention",
    "selective_scan",
]
