"""Kiln's launches (as the `launches` example writes them) on PyTorch's device and stream, through the driver."""

import ctypes as c

cuda = c.CDLL("libcuda.so.1")
SHARED, NON_PORTABLE, CLUSTER = 8, 14, 4


def check(code, what):
    if code:
        text = c.c_char_p()
        cuda.cuGetErrorString(code, c.byref(text))
        raise RuntimeError(f"{what}: {(text.value or b'').decode()} ({code})")


class Attribute(c.Structure):
    _fields_ = [("id", c.c_int), ("pad", c.c_char * 4), ("x", c.c_uint), ("y", c.c_uint), ("z", c.c_uint), ("rest", c.c_char * 52)]


class Config(c.Structure):
    _fields_ = [("grid", c.c_uint * 3), ("block", c.c_uint * 3), ("shared", c.c_uint), ("stream", c.c_void_p), ("attributes", c.POINTER(Attribute)), ("count", c.c_uint)]


class Program:
    """Launches with their memory; `run` enqueues all of them on the current stream."""

    def __init__(self, entry, inputs):
        import torch

        self.keep, self.launches = list(inputs), []
        at = [0] * len(entry["bytes"])
        for b, x in zip(entry["inputs"], inputs):
            if b is not None:
                at[b] = x.data_ptr()
        self.outputs = []
        for o in entry["outputs"]:
            dtype = {"f32": "float32", "f16": "float16", "bf16": "bfloat16", "i64": "int64", "f64": "float64", "i32": "int32"}[o["dtype"]]
            self.outputs.append(torch.empty(o["shape"], dtype=getattr(torch, dtype), device="cuda"))
            at[o["buffer"]] = self.outputs[-1].data_ptr()
        for b, size in enumerate(entry["bytes"]):
            if not at[b]:
                self.keep.append(torch.empty(max(size, 1), dtype=torch.uint8, device="cuda"))
                at[b] = self.keep[-1].data_ptr()
        modules = {}
        for launch in entry["launches"]:
            text = launch["ptx"]
            if text not in modules:
                modules[text] = c.c_void_p()
                check(cuda.cuModuleLoadData(c.byref(modules[text]), text.encode() + b"\0"), "loading " + launch["entry"])
            f = c.c_void_p()
            check(cuda.cuModuleGetFunction(c.byref(f), modules[text], launch["entry"].encode()), launch["entry"])
            check(cuda.cuFuncSetAttribute(f, SHARED, launch["shared"]), "shared memory")
            if launch["cluster"] > 8:
                check(cuda.cuFuncSetAttribute(f, NON_PORTABLE, 1), "cluster size")
            values = [c.c_uint64(at[a]) for a in launch["args"]]
            args = (c.c_void_p * len(values))(*[c.addressof(v) for v in values])
            attribute = Attribute(CLUSTER, b"", launch["cluster"], 1, 1, b"")
            config = Config((c.c_uint * 3)(*launch["grid"]), (c.c_uint * 3)(launch["threads"], 1, 1), launch["shared"], None, c.pointer(attribute), int(launch["cluster"] > 1))
            self.launches.append((f, config, args, values, attribute, launch["entry"]))
        self.modules = list(modules.values())

    def run(self):
        import torch

        stream = torch.cuda.current_stream().cuda_stream
        for f, config, args, _, _, name in self.launches:
            config.stream = stream
            check(cuda.cuLaunchKernelEx(c.byref(config), f, args, None), name)

    def close(self):
        for m in self.modules:
            cuda.cuModuleUnload(m)
