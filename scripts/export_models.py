"""Writes example models as TorchScript archives with seeded random weights, and inputs for them.

    scripts/export-models [--out DIR] [--group GROUP]... [NAME]...

For each NAME: DIR/NAME.pt and DIR/NAME.safetensors, whose tensors "0", "1", … are forward's arguments in order (a
scalar argument is a tensor of rank 0). Without names, the group `models`. Groups: models (whole networks), small
(single features, for tests), all. --list prints every name.
"""

import argparse
import os
import sys
import warnings
import zipfile

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import torch  # noqa: E402
from safetensors.torch import save_file  # noqa: E402

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import example_models  # noqa: E402

SEED = 0


def as_tensors(argument):
    """A forward argument as it is stored: tensors as they are, Python scalars with rank 0, tuples item by item."""
    if isinstance(argument, tuple):
        return [t for item in argument for t in as_tensors(item)]
    return [argument.contiguous() if torch.is_tensor(argument) else torch.tensor(argument)]


def strip_sources(path):
    """Rewrites an archive without its Python file names and lines, which differ between machines."""
    with zipfile.ZipFile(path) as archive:
        entries = [(i, archive.read(i)) for i in archive.infolist() if not i.filename.endswith(".debug_pkl")]
    with zipfile.ZipFile(path, "w", zipfile.ZIP_STORED) as archive:
        for info, data in entries:
            archive.writestr(zipfile.ZipInfo(info.filename), data)


def export(name, out, strip):
    torch.manual_seed(SEED)
    example = example_models.EXAMPLES[name]
    module, inputs = example.build()
    module = module.eval()
    for p in module.parameters():
        p.requires_grad_(False)
    stored = {str(i): t.clone() for i, t in enumerate(as_tensors(tuple(inputs)))}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if example.how == "trace":
            archive = torch.jit.trace(module, tuple(inputs), strict=False)
        else:
            archive = torch.jit.script(module)
    path = os.path.join(out, name + ".pt")
    archive.save(path)
    if strip:
        strip_sources(path)
    save_file(stored, os.path.join(out, name + ".safetensors"))
    return os.path.getsize(path)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME")
    parser.add_argument("--out", default="models")
    parser.add_argument("--group", action="append", choices=["models", "small", "all"], default=[])
    parser.add_argument("--list", action="store_true", help="print every name and its group")
    parser.add_argument("--strip-sources", action="store_true", help="leave out Python file names and lines")
    args = parser.parse_args()

    examples = example_models.EXAMPLES
    if args.list:
        for name, e in examples.items():
            print(f"{name:24} {e.group:8} {e.how}")
        return
    unknown = [n for n in args.names if n not in examples]
    if unknown:
        sys.exit(f"export-models: no model named {', '.join(unknown)}; --list prints the names")
    groups = args.group or ([] if args.names else ["models"])
    names = list(args.names) + [n for n, e in examples.items() if e.group in groups or "all" in groups]

    os.makedirs(args.out, exist_ok=True)
    torch.set_grad_enabled(False)
    failed = []
    for name in dict.fromkeys(names):
        try:
            size = export(name, args.out, args.strip_sources)
            print(f"{name}: {size / 1e6:.2f} MB", flush=True)
        except Exception as e:  # a failure must not prevent the export of other models
            failed.append(name)
            print(f"{name}: failed: {e!r}"[:2000], file=sys.stderr, flush=True)
    if failed:
        sys.exit(f"export-models: {len(failed)} failed: {', '.join(failed)}")


if __name__ == "__main__":
    main()
