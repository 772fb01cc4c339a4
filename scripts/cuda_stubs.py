#!/usr/bin/env python3
"""Makes `import torch` work from the CUDA wheel on a machine without the CUDA math libraries.

    cuda_stubs.py SITE_PACKAGES

The PyPI wheel of torch for x86-64 is a CUDA build: libtorch_python.so needs libtorch_cuda.so, libcudnn.so.9 and
libcufile.so.0, which with their own dependencies are 4 GB. On a CPU none of that code runs. This script finds the symbols
that libtorch_python.so (and torchvision's extension) import from them, and writes three small libraries that define just
these; calling any of them aborts the process with a message that names it.
"""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

STUBS = {"cudnn": "libcudnn.so.9", "cuFile": "libcufile.so.0"}  # by symbol prefix
CUDA_STUB = "libtorch_cuda.so"  # everything else
UNUSED = ("libtorch_cuda_linalg.so", "libtorch_nvshmem.so", "libcaffe2_nvrtc.so")
SYSTEM_DIRS = ("/lib/x86_64-linux-gnu", "/usr/lib/x86_64-linux-gnu", "/lib64", "/usr/lib64")
SYSTEM_LIBS = (
    "libstdc++.so.6", "libgcc_s.so.1", "libc.so.6", "libm.so.6",
    "libdl.so.2", "libpthread.so.0", "librt.so.1", "ld-linux-x86-64.so.2",
)

PRELUDE = """\
#include <stdio.h>
#include <stdlib.h>
static void die(const char *name) {
    fprintf(stderr, "torch called %s, but this torch was set up without CUDA (scripts/setup)\\n", name);
    abort();
}
extern void *class_type_info[] __asm__("_ZTVN10__cxxabiv117__class_type_infoE");
"""


def symbols(library, which):
    """Name -> (type letter, name with version) of a library's dynamic symbols; which is "defined-only" or "undefined-only"."""
    out = subprocess.run(["nm", "-D", "--" + which, str(library)], capture_output=True, text=True, check=True).stdout
    fields = (line.split() for line in out.splitlines())
    return {f[-1].split("@")[0]: (f[-2], f[-1]) for f in fields}


def provided(site):
    """Symbols that the remaining libraries define."""
    lib, cuda = site / "torch/lib", site / "nvidia/cu13/lib"
    libs = [lib / n for n in ("libtorch_cpu.so", "libc10.so", "libc10_cuda.so", "libshm.so", "libgomp.so.1")]
    libs += list(cuda.glob("libcudart.so.13")) + list(cuda.glob("libcupti.so.13"))
    for name in SYSTEM_LIBS:
        libs += [p for p in (Path(d) / name for d in SYSTEM_DIRS) if p.exists()][:1]
    names = set()
    for p in libs:
        names |= set(symbols(p, "defined-only"))
    return names


def missing_symbols(site):
    """Symbols that torch's Python extension needs and no remaining library defines: name -> name with version."""
    python = site / "torch/lib/libtorch_python.so"
    wanted = symbols(python, "undefined-only")
    vision = site / "torchvision/_C.so"
    if vision.exists():
        own = symbols(python, "defined-only")
        wanted.update({k: v for k, v in symbols(vision, "undefined-only").items() if k not in own})
    have = provided(site)
    weak = "wv"
    return {s: full for s, (kind, full) in wanted.items() if s not in have and kind not in weak and not s.startswith(("Py", "_Py"))}


def definition(i, name):
    """C text that defines one symbol."""
    if name.startswith("_ZTI"):  # type information: pybind11 reads its name at import
        return f'void *d{i}[4] __asm__("{name}") = {{&class_type_info[2], "{name[4:]}"}};\n'
    if name.startswith(("_ZTV", "_ZTS")):  # other data: vtables and type names
        return f'void *d{i}[64] __asm__("{name}") = {{0}};\n'
    if name == "_ZN4c10d15get_gil_checkerEv":  # called by a static initialiser, returns a reference
        return f'static void *g{i}[8];\nvoid *f{i}(void) __asm__("{name}");\nvoid *f{i}(void) {{ return g{i}; }}\n'
    return f'void f{i}(void) __asm__("{name}");\nvoid f{i}(void) {{ die("{name}"); }}\n'


def build(soname, names, out):
    """Compiles a library that defines names (a list of pairs: name, name with version)."""
    with tempfile.TemporaryDirectory() as tmp:
        source = Path(tmp, "stub.c")
        source.write_text(PRELUDE + "".join(definition(i, s) for i, (s, _) in enumerate(names)))
        args = ["gcc", "-w", "-shared", "-fPIC", "-O1", "-o", str(out) + ".new", str(source), "-lstdc++", f"-Wl,-soname,{soname}", "-Wl,-s"]
        versions = sorted({full.split("@")[-1] for _, full in names if "@" in full})
        if versions:
            script = Path(tmp, "versions.map")
            with script.open("w") as f:
                for v in versions:
                    f.write("%s { global: %s };\n" % (v, " ".join(s + ";" for s, full in names if full.endswith("@" + v))))
            args.append(f"-Wl,--version-script={script}")
        subprocess.run(args, check=True)
    os.replace(str(out) + ".new", out)


def main():
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    site = Path(sys.argv[1])
    lib = site / "torch/lib"
    groups = {CUDA_STUB: [], **{so: [] for so in STUBS.values()}}
    for name, full in sorted(missing_symbols(site).items()):
        so = next((so for prefix, so in STUBS.items() if name.startswith(prefix)), CUDA_STUB)
        groups[so].append((name, full))
    for so, names in groups.items():
        build(so, names, lib / so)
    for name in UNUSED:
        (lib / name).unlink(missing_ok=True)


if __name__ == "__main__":
    main()
