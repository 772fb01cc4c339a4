"""A stand-in for `kiln._native` that runs programs by calling `torch.ops`.

It reads the program's JSON and nothing else: an oracle for what the writer wrote, and what the
Python side is tested with where the native module is not built. `install` puts it in place.
"""

from __future__ import annotations

import json
import sys
import types
from typing import Any

import sympy
import torch
from torch.utils._sympy import functions

NAMES = {
    "f64": torch.float64,
    "f32": torch.float32,
    "f16": torch.float16,
    "bf16": torch.bfloat16,
    "f8e4m3": torch.float8_e4m3fn,
    "f8e5m2": torch.float8_e5m2,
    "i64": torch.int64,
    "i32": torch.int32,
    "i16": torch.int16,
    "i8": torch.int8,
    "u8": torch.uint8,
    "bool": torch.bool,
}
SCALAR_TYPES = {
    0: torch.uint8,
    1: torch.int8,
    2: torch.int16,
    3: torch.int32,
    4: torch.int64,
    5: torch.float16,
    6: torch.float32,
    7: torch.float64,
    9: torch.complex64,
    10: torch.complex128,
    11: torch.bool,
    15: torch.bfloat16,
    23: torch.float8_e5m2,
    24: torch.float8_e4m3fn,
}
OPTIONS = {
    "device",
    "numerics",
    "splits",
    "batch_invariant",
    "fuse",
    "threads",
    "cache",
    "cache_size",
    "cache_bytes",
    "fallback",
    "while_compiling",
    "buckets",
    "machine_code",
}


class KilnError(RuntimeError):
    pass


class UnsupportedError(KilnError):
    pass


class ShapeError(KilnError):
    pass


class InputError(KilnError):
    pass


class DeviceError(KilnError):
    pass


class UsageError(KilnError):
    pass


#: Operators that the stand-in refuses, for tests of refusals.
REFUSED: set[str] = set()
#: Every engine that was made and not yet freed is counted here.
COUNTS = {"engines": 0, "runs": 0}


class Engine:
    def __init__(self, program: str, params: list[torch.Tensor], options: dict[str, Any]) -> None:
        unknown = set(options) - OPTIONS
        if unknown:
            raise UsageError(f"unknown options {unknown}")
        self.program = json.loads(program)
        self.params, self.options = list(params), options
        self.used: dict[str, dict[str, Any]] = {}
        self.last: dict[str, int] | None = None
        self.refreshed = 0
        #: Versions of the parameters when they were last looked at, as if all were packed.
        self.versions: list[int] | None = None
        assert set(self.program) == {
            "name", "symbols", "guards", "values", "inputs", "params", "calls", "outputs", "writes"
        }  # fmt: skip
        for call in self.program["calls"]:
            if call["name"] in REFUSED:
                raise UnsupportedError(f"{call['name']} at {call['source']}: use another operator")
        for id, tensor in zip(self.program["params"], params, strict=True):
            assert self.program["values"][id]["name"]
            self.check(id, tensor, {})
        COUNTS["engines"] += 1

    def __del__(self) -> None:
        COUNTS["engines"] -= 1

    def check(self, id: int, tensor: torch.Tensor, sizes: dict[str, int]) -> None:
        info = self.program["values"][id]
        want = NAMES.get(info["dtype"]) or getattr(torch, info["dtype"])
        if tensor.dtype is not want:
            raise InputError(f"a tensor is {tensor.dtype}, not {want}: convert it")
        shape = [self.size(s, sizes) for s in info["shape"]]
        if list(tensor.shape) != shape:
            raise ShapeError(f"a tensor is {list(tensor.shape)}, and the program takes {shape}")

    def size(self, text: int | str, sizes: dict[str, int]) -> Any:
        if isinstance(text, int):
            return text
        expr = eval(text, {**vars(functions), **vars(sympy)})
        known = {s: sizes[s.name] for s in expr.free_symbols}
        value = expr.subs(known)
        return int(value) if value.is_Integer or value.is_integer else float(value)

    def bind(self, args: list[Any]) -> dict[str, int]:
        sizes: dict[str, int] = {}
        for entry, arg in zip(self.program["inputs"], args, strict=True):
            pairs: list[tuple[Any, int]] = []
            if "value" in entry:
                if not isinstance(arg, torch.Tensor):
                    raise InputError(f"{entry['name']} is a {type(arg).__name__}: pass a tensor")
                shape = self.program["values"][entry["value"]]["shape"]
                if len(shape) != arg.dim():
                    raise ShapeError(f"{entry['name']} has rank {arg.dim()}, not {len(shape)}")
                pairs = list(zip(shape, arg.shape, strict=True))
            elif "size" in entry:
                pairs = [(entry["size"], arg)]
            elif self.literal(entry["constant"]) != arg:
                raise InputError(f"{entry['name']} is {arg}: it was fixed at tracing")
            for text, size in pairs:
                if isinstance(text, str) and text.startswith("Symbol("):
                    name = text.split("'")[1]
                    bounds = self.program["symbols"][name]
                    high = bounds["max"]
                    if size < bounds["min"] or (high is not None and size > high):
                        raise ShapeError(f"{name} is {size}, outside of {bounds}")
                    sizes[name] = size
        for entry, arg in zip(self.program["inputs"], args, strict=True):
            if "value" in entry:
                self.check(entry["value"], arg, sizes)
        return sizes

    def literal(self, arg: Any, env: dict[int, Any] | None = None, sizes: Any = None) -> Any:
        if arg == "none":
            return None
        ((kind, value),) = arg.items()
        if kind == "value":
            return (env or {})[value]
        if kind == "list":
            return [self.literal(v, env, sizes) for v in value]
        if kind == "size":
            return self.size(value, sizes)
        if kind == "device":
            return torch.device(value)
        if kind == "opaque":
            raise UnsupportedError(f"cannot run with {value}")
        return float(value) if kind == "float" else value

    def run(self, args: list[Any]) -> list[Any]:
        COUNTS["runs"] += 1
        if self.versions is None:
            self.versions = self.seen()
        assert type(args) is list
        sizes = self.bind(args)
        key = json.dumps(sizes)
        new = {"sizes": sizes, "hits": 0, "compile_s": 0.0, "bytes": 0, "timings": {}}
        used = self.used.setdefault(key, new)
        used["hits"] += 1
        self.last = sizes
        env: dict[int, Any] = dict(zip(self.program["params"], self.params, strict=True))
        for entry, arg in zip(self.program["inputs"], args, strict=True):
            if "value" in entry:
                env[entry["value"]] = arg
        with torch.no_grad():
            for call in self.program["calls"]:
                self.call(call, env, sizes)
            outputs = [self.result(o, env, sizes) for o in self.program["outputs"]]
            writes = [(w["target"], env[w["value"]].clone()) for w in self.program["writes"]]
            for target, value in writes:
                env[target].copy_(value)
        return outputs

    def steps(self, count: int, args: list[Any]) -> list[Any]:
        if count == 0:
            raise UsageError("0 steps have no outputs: run at least one step")
        return [self.run(args) for _ in range(count)][-1]

    def call(self, call: dict[str, Any], env: dict[int, Any], sizes: dict[str, int]) -> None:
        namespace, _, name = call["name"].partition("::")
        overload = call["overload"] or "default"
        op = getattr(getattr(getattr(torch.ops, namespace), name), overload)
        positional, keywords = [], {}
        arguments = op._schema.arguments
        assert len(arguments) == len(call["args"]), call
        for schema, written in zip(arguments, call["args"], strict=True):
            value = self.literal(written, env, sizes)
            kind = str(schema.real_type if hasattr(schema, "real_type") else schema.type)
            if "ScalarType" in kind and value is not None:
                value = SCALAR_TYPES[value]
            if schema.kwarg_only:
                keywords[schema.name] = value
            else:
                positional.append(value)
        if call["name"] in ("aten::view", "aten::_unsafe_view"):
            # Memory formats are not written, so a copy may have kept other strides.
            op = torch.ops.aten.reshape.default
        result = op(*positional, **keywords)
        flat = [t for t in flatten(result) if isinstance(t, torch.Tensor)]
        assert len(flat) == len(call["outs"]), call
        for id, tensor in zip(call["outs"], flat, strict=True):
            self.check(id, tensor, sizes)
            env[id] = tensor

    def result(self, output: Any, env: dict[int, Any], sizes: dict[str, int]) -> Any:
        if output == "none":
            return None
        if "constant" in output:
            return self.literal(output["constant"])
        return self.literal(output, env, sizes)

    def warm(self, sizes: dict[str, int]) -> None:
        missing = set(self.program["symbols"]) - set(sizes)
        if missing:
            raise UsageError(f"no size for {missing}")
        entry = {"sizes": sizes, "hits": 0, "compile_s": 0.0, "bytes": 0, "timings": {}}
        self.used.setdefault(json.dumps(sizes), entry)

    def report(self, sizes: dict[str, int] | None = None) -> str:
        kernels = [
            {
                "name": f"k{i}",
                "kind": "pointwise",
                "nodes": [call["name"]],
                "bytes_read": 0,
                "bytes_written": 0,
                "flops": 0,
                "predicted_us": 1.0,
                "reason": "one operator",
            }
            for i, call in enumerate(self.program["calls"])
        ]
        nodes = len(kernels)
        report = {"kernels": kernels, "fallback": [], "nodes": nodes, "lower_bound_us": 1.0}
        return json.dumps({**report, "predicted_us": float(nodes)})

    def text(self, sizes: dict[str, int] | None = None) -> str:
        return "\n".join(f"{i} {c['name']}" for i, c in enumerate(self.program["calls"]))

    def html(self, sizes: dict[str, int] | None = None) -> str:
        return f"<html><body><pre>{self.text(sizes)}</pre></body></html>"

    def why(self, a: str, b: str, sizes: dict[str, int] | None = None) -> str:
        return f"{a} and {b} are in kernels of their own"

    def bindings(self) -> list[dict[str, Any]]:
        return list(self.used.values())

    def fallbacks(self, sizes: dict[str, int] | None = None) -> list[str]:
        return []

    def seen(self) -> list[int]:
        return [0 if p.is_inference() else p._version for p in self.params]

    def changed(self) -> bool:
        return self.versions is not None and self.versions != self.seen()

    def refresh(self) -> None:
        self.refreshed += 1
        self.versions = self.seen()

    def plan(self, sizes: dict[str, int] | None = None) -> str:
        return self.text(sizes)

    def save(self, path: str, sizes: dict[str, int] | None = None) -> None:
        torch.save({"program": self.program, "params": self.params}, path)


def flatten(result: Any) -> list[Any]:
    if isinstance(result, (list, tuple)):
        return [t for item in result for t in flatten(item)]
    return [result]


def load(path: str, options: dict[str, Any]) -> Engine:
    held = torch.load(path)
    return Engine(json.dumps(held["program"]), held["params"], options)


def refusals(program: str) -> list[tuple[list[int], str, str]]:
    """The stand-in refuses when it makes an engine."""
    return []


def install() -> types.ModuleType:
    """Puts the stand-in where `kiln` imports its native module from."""
    module = types.ModuleType("kiln._native")
    names = "KilnError UnsupportedError ShapeError InputError DeviceError UsageError Engine"
    for name in names.split():
        setattr(module, name, globals()[name])
    module.open = load  # type: ignore[attr-defined]
    module.doctor = lambda: "native: stand-in"  # type: ignore[attr-defined]
    module.refusals = refusals  # type: ignore[attr-defined]
    module.__version__ = "0.0.0"  # type: ignore[attr-defined]
    sys.modules["kiln._native"] = module
    return module
