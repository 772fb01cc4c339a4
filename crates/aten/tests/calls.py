"""Calls of ATen operators with their eager results, for `operators.py`. `write` gives calls.json, which holds each call as
`kiln_aten::Raw`, and tensors.safetensors with inputs "CASE.in0", … and results "CASE.out0", …"""

import json
import math

import safetensors.torch
import torch

torch.manual_seed(0)
torch.set_grad_enabled(False)

DTYPES = {
    torch.float64: ("f64", 7),
    torch.float32: ("f32", 6),
    torch.float16: ("f16", 5),
    torch.bfloat16: ("bf16", 15),
    torch.int64: ("i64", 4),
    torch.int32: ("i32", 3),
    torch.int16: ("i16", 2),
    torch.int8: ("i8", 1),
    torch.uint8: ("u8", 0),
    torch.bool: ("bool", 11),
}
FLOATS = (torch.float32, torch.float16, torch.bfloat16)
INTS = (torch.int64, torch.int32)
cases, tensors = [], {}


def flat(results):
    return [results] if isinstance(results, torch.Tensor) else [t for r in results for t in flat(r)]


def case(name, *given, by=None, keep=None, refused=None, left=None, drawn="", rounding=(), **named):
    """One call. `by`: what computes the results instead of the operator; `keep`: how many results are used; `refused`: words
    of the refusal; `left`: words of the reason why the call is left to libtorch; `drawn`: how the call was drawn at random; `rounding`:
    of each result, how far torch's own rounding of what the operator computes on the way may take it from the exact value."""
    base, _, overload = name.partition(".")
    operator = getattr(getattr(torch.ops.aten, base), overload or "default")
    index, values, inputs = len(cases), [], []

    def encode(v):
        if isinstance(v, torch.Tensor):
            tensors[f"{index}.in{len(inputs)}"] = v.clone().contiguous()
            values.append({"dtype": DTYPES[v.dtype][0], "shape": list(v.shape)})
            inputs.append({"name": f"x{len(inputs)}", "value": len(values) - 1})
            return {"value": len(values) - 1}
        if v is None:
            return "none"
        if isinstance(v, torch.dtype):
            return {"int": DTYPES[v][1]}
        if isinstance(v, bool):
            return {"bool": v}
        if isinstance(v, int):
            return {"int": v}
        if isinstance(v, float):
            return {"float": v if math.isfinite(v) else str(v)}
        if isinstance(v, str):
            return {"str": v}
        if all(isinstance(e, int) for e in v):
            return {"ints": list(v)}
        return {"list": [encode(e) for e in v]}

    given, args = list(given), []
    for parameter in operator._schema.arguments:
        if given and not parameter.kwarg_only:
            v = given.pop(0)
            named[parameter.name] = v
        else:
            v = named.get(parameter.name, parameter.default_value)
        args.append(encode(v))
    results = [torch.zeros(1)] if refused else flat(by() if by else operator(**named))
    outputs = []
    for i, r in enumerate(results):
        values.append({"dtype": DTYPES[r.dtype][0], "shape": list(r.shape)})
        if keep is None or i < keep:
            tensors[f"{index}.out{i}"] = r.clone().contiguous()
            outputs.append(len(values) - 1)
    outs = list(range(len(values) - len(results), len(values)))
    call = {"name": f"aten::{base}", "overload": overload, "args": args, "outs": outs}
    raw = {"inputs": inputs, "values": values, "calls": [call], "outputs": outputs, "structure": None}
    shown = ", ".join(str(list(t.shape)) + " " + DTYPES[t.dtype][0] for t in flat([v for v in named.values() if isinstance(v, torch.Tensor)]))
    cases.append({"name": f"{name}({shown}) {drawn}".strip(), "raw": raw, "refused": refused, "left": left, "rounding": list(rounding)})


def normal(dtype, *shape):
    return torch.randn(*shape).to(dtype)


def whole(dtype, *shape, low=-5, high=9):
    return torch.randint(low if dtype.is_signed else 0, high, shape).to(dtype)


SPECIAL = [0.0, -0.0, 1.0, -1.0, 0.5, -0.5, 2.5, -3.0, 1e-4, -7e-3, 90.0, -3e4, math.inf, -math.inf, math.nan]


def special(dtype):
    return torch.tensor(SPECIAL).to(dtype)


def write(folder):
    (folder / "calls.json").write_text(json.dumps(cases))
    safetensors.torch.save_file(tensors, folder / "tensors.safetensors")
