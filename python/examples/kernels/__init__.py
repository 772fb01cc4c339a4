"""Kernels in the language of `kiln.language`: one file for each computation, with its kernels, a function
that launches them, a reference in PyTorch, and benchmarks.

    cd python/examples
    python -m kernels.softmax        # prints the table of its benchmark

The files run on GPUs and on the CPU. `benches/kernels.py` measures all of them, and the same files
through Triton where it is installed: parameters annotated `kl.Array` are the only thing that Triton lacks.
"""

#: Titles of the examples by name, in the order of the guide.
EXAMPLES = {
    "vector_add": "Vector addition",
    "softmax": "Softmax",
    "gelu": "GELU",
    "dropout": "Dropout without a mask in memory",
    "rms_norm": "RMS norm",
    "layer_norm": "Layer norm, forward and backward",
    "rotary": "Rotary position embedding",
    "cross_entropy": "Cross entropy and its gradient",
    "matmul": "Matmul",
    "matmul_leaky_relu": "Matmul with an epilogue",
    "ladder": "The ladder of a matmul",
    "persistent_matmul": "Persistent matmul",
    "stream_k_matmul": "Stream-K matmul",
    "grouped_gemm": "Grouped GEMM",
    "cdist": "Distances between all pairs",
    "scaled_matmul": "Matmul of int8 and f8 with scales",
    "int4_matmul": "Matmul with weights of 4 bits",
    "attention": "Flash attention",
    "paged_attention": "Paged attention of one query",
    "selective_scan": "Selective scan over a state space",
}
