"""Writes the list of operators that a graph may leave to libtorch: crates/graph/src/fallback/operators.txt.

Graphs come from untrusted files, so their operators must do nothing but compute results from operands. Each class of operators below
is excluded for the reason given with it. The others are called with random, mostly invalid arguments, each in a process of its own, and
operators that crash the process are excluded too.

    .deps/venv/bin/python scripts/fallback_operators.py [--calls N]
"""

import argparse
import os
import random
import re
import resource
import signal
from pathlib import Path

import torch

LIST = Path(__file__).parent.parent / "crates/graph/src/fallback/operators.txt"

# Views that libtorch checks against their operand, which is dense. All other views are excluded: `as_strided` and `_reshape_alias` do not
# check their strides.
VIEWS = set(
    """adjoint alias broadcast_to chunk contiguous detach diagonal dsplit.array dsplit.int expand expand_as flatten.using_ints
    hsplit.array hsplit.int linalg_diagonal mH mT matrix_H movedim.int movedim.intlist moveaxis.int moveaxis.intlist narrow
    numpy_T permute positive ravel reshape reshape_as resolve_conj resolve_neg select.int slice.Tensor split.Tensor split.sizes
    split_with_sizes squeeze squeeze.dim squeeze.dims swapaxes swapdims t tensor_split.indices tensor_split.sections to.dtype
    to.other transpose.int unbind.int unflatten.int unfold unsqueeze view view.dtype view_as vsplit.array vsplit.int""".split()
)
# Operators with the names of libtorch internals that exported models contain, and that check their arguments.
INTERNAL = set(
    """__and__ __lshift__ __or__ __rshift__ __xor__ _adaptive_avg_pool2d _adaptive_avg_pool3d _aminmax _conj_physical
    _convolution _convolution_mode _dim_arange _euclidean_dist _int_mm _is_all_true _is_any_true _linalg_det _linalg_slogdet
    _log_softmax _logcumsumexp _masked_softmax _native_batch_norm_legit _native_batch_norm_legit_no_training
    _native_multi_head_attention _pack_padded_sequence _pad_circular _pad_enum _pad_packed_sequence _prelu_kernel
    _reshape_copy _safe_softmax _scaled_dot_product_attention_math _scaled_dot_product_efficient_attention
    _scaled_dot_product_flash_attention_for_cpu _scaled_mm _shape_as_tensor _softmax _stack _to_copy
    _transformer_encoder_layer_fwd _trilinear _unique _unique2 _upsample_bicubic2d_aa _upsample_bilinear2d_aa
    _upsample_nearest_exact1d _upsample_nearest_exact2d _upsample_nearest_exact3d _weight_norm _weight_norm_interface""".split()
)
# Names of string arguments that are allowed: a choice among words, or an equation. Never a path.
TEXTS = set("approximate driver equation indexing interpolation mode norm ord padding reduce rounding_mode side UPLO".split())
LEFT_OUT = [
    (r"_backward|_jvp$|_double_backward|_grad$", "gradients: they trust tensors saved by the forward"),
    (
        r"sparse|nested|jagged|mkldnn|cudnn|miopen|mps|fbgemm|quantized|quantize_per|^q_|int_repr|to_dense|to_padded|values|"
        r"indices_copy|coalesce|smm|spmm|sspaddmm|choose_qparams|overrideable|batch_norm_(stats|elemt|gather|update)|"
        r"^lift|^view_as_complex|^chalf$|^complex$|^polar$",
        "other layouts, devices and element types than a graph's",
    ),
    (r"empty|resize|^set$|^data$", "memory that nobody wrote, or storage given away"),
    (r"as_strided|reshape_alias|slice_inverse", "strides on trust"),
    (r"^unsafe_|^embedding_renorm$|^segment_reduce$|^infinitely_differentiable", "made for callers that checked before"),
    (r"^_test|^_foo", "libtorch's own tests"),
]
# Operators to which libtorch passes weights of any shape; crates/graph/src/fallback.rs checks the shapes.
RECURRENT = re.compile(r"^(lstm|gru|rnn_tanh|rnn_relu)\.input$")
FAKE_QUANTISED = re.compile(r"^fake_quantize_per_(tensor|channel)_affine$")
TYPES = re.compile(r"^(Tensor|int|float|bool|Scalar|str|Generator|Device)(\[\d*\])?\??(\[\d*\])?\??$")


def arguments(text):
    """The arguments in a schema's text, split at commas outside of parentheses and brackets."""
    inner, depth, part, found = text[text.index("(") + 1 :], 0, "", []
    for c in inner:
        if c == ")" and depth == 0:
            break
        depth += c in "(["
        depth -= c in ")]"
        if c == "," and depth == 0:
            found.append(part.strip())
            part = ""
        else:
            part += c
    found.append(part.strip())
    return [a for a in found if a and a != "*"]


def plain(text):
    for name in ("ScalarType", "Layout", "MemoryFormat", "SymInt", "DeviceIndex"):
        text = re.sub(rf"\b{name}\b", "int", text)
    text = re.sub(r"\bnumber\b", "Scalar", text)
    return re.sub(r"Tensor\([a-z](?: -> \*)?\)", "Tensor", text)


def why_not(schema, full):
    """The reason why an operator is excluded, or None."""
    name, overload = full.split(".")[0], full
    if any(a.alias_info and a.alias_info.is_write for a in schema.arguments):
        return "it writes an operand"
    if any(a.alias_info for a in list(schema.arguments) + list(schema.returns)) and overload not in VIEWS:
        return "it gives its operand's memory away"
    if not schema.returns or any(str(r.type) not in ("Tensor", "List[Tensor]") for r in schema.returns):
        return "its results are no tensors"
    if name.startswith("_") and name not in INTERNAL:
        return "libtorch's own"
    if not FAKE_QUANTISED.match(name):
        for pattern, why in LEFT_OUT:
            if re.search(pattern, name):
                return why
    for a in arguments(plain(str(schema))):
        kind, rest = a.split(" ", 1)
        if not TYPES.match(kind):
            return "an argument is no tensor, number or word"
        if kind.startswith("str") and rest.split("=")[0] not in TEXTS:
            return "a text that may be a path or a name"
        if kind == "Generator" or kind == "Device":
            return "an argument is no tensor, number or word"
    return None


SHAPES = [[], [0], [3], [1], [2, 3], [3, 3], [2, 3, 4], [1, 2, 4, 4], [1, 2, 3, 4, 4]]
DTYPES = [torch.float32] * 5 + [torch.int64, torch.int64, torch.float64, torch.bool, torch.uint8, torch.bfloat16, torch.int32]
INTS = [-1, 0, 1, 2, 3, 4, -2, -7, 100, 2**31, -(2**31), 2**40, 2**63 - 1, -(2**63)]
FLOATS = [0.0, 1.0, -1.0, 0.5, 1e30, float("inf"), float("nan")]
WORDS = "none tanh mean sum max linear nearest same valid zeros constant reflect floor trunc ij xy left right U L gelsd fro nuc ij,jk->ik x".split()


def value(r, kind, shapes=SHAPES):
    if kind.endswith("?"):
        return None if r.random() < 0.5 else value(r, kind[:-1], shapes)
    if kind.endswith("]"):
        base, n = kind[: kind.rindex("[")], kind[kind.rindex("[") + 1 : -1]
        n = int(n) if n and int(n) > 1 else r.randrange(4)
        return [value(r, base, shapes) for _ in range(n)]
    if kind == "Tensor":
        dtype = r.choice(DTYPES)
        t = torch.randn(r.choice(shapes)) * r.choice([1, 3, 100])
        return t.to(dtype)
    if kind == "int":
        return r.choice(INTS[:6]) if r.random() < 0.7 else r.choice(INTS)
    if kind == "bool":
        return r.random() < 0.5
    if kind == "str":
        return r.choice(WORDS)
    return r.choice(FLOATS) if r.random() < 0.5 else r.choice(INTS[:8])


def calls(full, text, n, condition):
    """Calls an operator with random arguments in this process; ignores errors."""
    r = random.Random(full)
    name, _, overload = full.partition(".")
    op = getattr(getattr(torch.ops.aten, name), overload or "default")
    kinds = [(a.split(" ", 1)[0], a.split(" ", 1)[1].split("=")[0]) for a in arguments(text)]
    for _ in range(n):
        given = {}
        for kind, arg in kinds:
            if kind.startswith(("Generator", "Device")) or arg in ("layout", "pin_memory"):
                continue
            if arg in ("dtype", "memory_format"):
                given[arg] = None if kind.endswith("?") else torch.float32
                continue
            given[arg] = value(r, kind, [s for s in SHAPES if 0 not in s] if condition == "filled" else SHAPES)
        try:
            op(**given)
        except (RuntimeError, TypeError, ValueError, IndexError, NotImplementedError, MemoryError, OverflowError):
            pass
        except Exception:
            pass


def ends(full, text, n, condition):
    """The signal that kills a process which makes such calls, or None."""
    pid = os.fork()
    if pid == 0:
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, 1)
        os.dup2(null, 2)
        resource.setrlimit(resource.RLIMIT_DATA, (2 << 30, 2 << 30))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        signal.alarm(20)
        calls(full, text, n, condition)
        os._exit(0)
    status = os.waitpid(pid, 0)[1]
    if os.WIFSIGNALED(status) and os.WTERMSIG(status) != signal.SIGALRM:
        return signal.Signals(os.WTERMSIG(status)).name
    return None


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--calls", type=int, default=60, help="calls with wrong arguments of each operator")
    n = parser.parse_args().calls
    torch.set_num_threads(1)
    torch.set_grad_enabled(False)
    known = set(torch._C._dispatch_get_all_op_names())
    kept, ended = [], []
    for schema in torch._C._jit_get_all_schemas():
        full = schema.name + (f".{schema.overload_name}" if schema.overload_name else "")
        if not schema.name.startswith("aten::") or full not in known or why_not(schema, full[6:]):
            continue
        text = plain(str(schema)).removeprefix("aten::").replace("*, ", "")
        wanted = "recurrent" if RECURRENT.match(full[6:]) else None
        end = None if wanted else ends(full[6:], text, n, None)
        if end and not ends(full[6:], text, n, "filled"):
            wanted, end = "filled", None
        (ended if end else kept).append((text + (f"  # {wanted}" if wanted else ""), end))
    with LIST.open("w") as out:
        out.write(HEADER.format(version=torch.__version__.split("+")[0]))
        out.writelines(f"# {text.split('(')[0]}\n" for text, _ in sorted(ended))
        out.write("\n")
        out.writelines(f"{text}\n" for text, _ in sorted(set(kept)))
    for text, end in ended:
        print(f"excluded, since it crashes with {end}: {text.split('(')[0]}")
    print(f"{len(kept)} operators")


HEADER = """\
# Operators of `aten` that a graph may leave to libtorch, with their schemas in torch {version}. Written by
# scripts/fallback_operators.py, which has the reason for each class that is left out:
# - operators of other namespaces, and those that are TorchScript's alone (`prim::ConstantChunk`);
# - what writes an operand, reads or writes files, takes a text that may be a path;
# - what gives an operand's memory away or takes strides on trust (`_reshape_alias`, `as_strided`), views aside that libtorch checks;
# - memory that nobody wrote (`empty`); gradients; other layouts, devices and element types than a graph's; libtorch's own (`_…`);
# - what ends the process when its arguments are wrong, though they are of the schema's types. `# filled`: where no operand is empty it
#   does not; `# recurrent`: where states and weights are those that layers and directions ask for. These went out:
"""

if __name__ == "__main__":
    main()
