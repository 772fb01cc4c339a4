"""Runs what the `dump_ptx` example wrote and compares with the interpreter's results: run_ptx.py DIR. Needs only a driver."""
import ctypes, json, math, struct, sys
from pathlib import Path

cuda = ctypes.CDLL("libcuda.so.1")


def check(code, what):
    if code:
        text = ctypes.c_char_p()
        cuda.cuGetErrorString(code, ctypes.byref(text))
        raise RuntimeError(f"{what}: {code} {text.value}")


def numbers(elem, data):
    if elem == "bf16":
        return [struct.unpack("<f", b"\0\0" + data[i : i + 2])[0] for i in range(0, len(data), 2)]
    code = {"f64": "d", "f32": "f", "f16": "e", "i64": "q", "i32": "i", "u8": "B", "bool": "B"}[elem]
    return list(struct.unpack(f"<{len(data) // struct.calcsize(code)}{code}", data))


# Tolerance, relative to the largest magnitude in the result: products and sums may be computed in another order.
TOLERANCE = {"f64": 1e-12, "f32": 2e-6, "f16": 1e-3, "bf16": 8e-3}


def compare(elem, got, want, name):
    tolerance = 2e-3 if "tf32" in name and "tf32x3" not in name else TOLERANCE.get(elem, 0)
    scale = max([abs(w) for w in want if math.isfinite(w)] + [0])
    worst, at = 0.0, -1
    for i, (g, w) in enumerate(zip(got, want)):
        if g == w or (g != g and w != w):
            continue
        error = abs(g - w) / max(scale, 1e-30) if math.isfinite(g) and math.isfinite(w) else math.inf
        if error > worst:
            worst, at = error, i
    if worst > tolerance:
        return f"WRONG at {at}: {got[at]} for {want[at]} (error {worst:.2e} of the largest)"
    return f"ok, error {worst:.1e}"


def main():
    folder = Path(sys.argv[1])
    check(cuda.cuInit(0), "cuInit")
    device, context = ctypes.c_int(), ctypes.c_void_p()
    check(cuda.cuDeviceGet(ctypes.byref(device), 0), "device")
    check(cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), device), "context")
    check(cuda.cuCtxSetCurrent(context), "context")
    wrong = 0
    for k in json.loads((folder / "index.json").read_text()):
        name = k["name"]
        module, function = ctypes.c_void_p(), ctypes.c_void_p()
        check(cuda.cuModuleLoadData(ctypes.byref(module), (folder / f"{name}.ptx").read_bytes() + b"\0"), name)
        check(cuda.cuModuleGetFunction(ctypes.byref(function), module, k["entry"].encode()), name)
        check(cuda.cuFuncSetAttribute(function, 8, k["shared"]), "shared memory")
        pointers = []
        for i, a in enumerate(k["args"]):
            data = (folder / f"{name}.in{i}").read_bytes()
            p = ctypes.c_uint64()
            check(cuda.cuMemAlloc_v2(ctypes.byref(p), max(len(data), 1)), "memory")
            check(cuda.cuMemcpyHtoD_v2(p, data, len(data)), "copy")
            pointers.append(p)
        args = (ctypes.c_void_p * len(pointers))(*[ctypes.addressof(p) for p in pointers])
        check(cuda.cuLaunchKernel(function, *k["grid"], k["threads"], 1, 1, k["shared"], None, args, None), name)
        check(cuda.cuCtxSynchronize(), name)
        for i, a in enumerate(k["args"]):
            want = (folder / f"{name}.out{i}").read_bytes()
            got = ctypes.create_string_buffer(len(want))
            check(cuda.cuMemcpyDtoH_v2(got, pointers[i], len(want)), "copy")
            if a["written"]:
                verdict = compare(a["elem"], numbers(a["elem"], got.raw), numbers(a["elem"], want), name)
                wrong += verdict.startswith("WRONG")
                print(f"{name:32} {verdict}")
            elif got.raw != want:
                wrong += 1
                print(f"{name:32} WRONG: wrote to argument {i}, which it only reads")
        for p in pointers:
            cuda.cuMemFree_v2(p)
        cuda.cuModuleUnload(module)
    print("all right" if not wrong else f"{wrong} wrong")
    sys.exit(1 if wrong else 0)


main()
