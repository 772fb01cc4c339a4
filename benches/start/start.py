"""Seconds from a model to its first result: cold, in a second process, and from an artifact.

    python benches/start/start.py --out start.json                       # all models on the CPU
    python benches/start/start.py --device cuda --models bert resnet18   # some of them on a GPU

Every figure is of a process of its own, beyond importing torch, the model's library and making the
model: `compile` to the first result that is complete. Cold: with empty caches, of Kiln, of Inductor
and of the CUDA driver. Warm: the next process with the same caches. Artifact: `kiln.load` of what
`Compiled.save` wrote, to its first result. Doors: `kiln` (kiln.compile), `backend`
(torch.compile(backend="kiln")), `inductor`, and `dynamo` (backend="eager"): what torch.compile
takes before any backend. Weights are random, of each library's configuration.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

SMALL = {"vocab_size": 1000, "max_position_embeddings": 128}


def encoder(name, **more):
    def make():
        import torch
        import transformers

        config = getattr(transformers, f"{name}Config")(**more)
        model = getattr(transformers, f"{name}Model")(config)
        return model, (torch.randint(3, 100, (1, 64)),)

    return make


def causal(name, **more):
    def make():
        import torch
        import transformers

        class Logits(torch.nn.Module):
            def __init__(self, model):
                super().__init__()
                self.model = model

            def forward(self, ids):
                return self.model(input_ids=ids, use_cache=False).logits

        config = getattr(transformers, f"{name}Config")(**more)
        model = transformers.AutoModelForCausalLM.from_config(config)
        return Logits(model), (torch.randint(3, 100, (1, 64)),)

    return make


def vision(name, size=224):
    def make():
        import torch
        import torchvision

        model = getattr(torchvision.models, name)(weights=None)
        return model, (torch.randn(1, 3, size, size),)

    return make


def pixels(name, size, **more):
    def make():
        import torch
        import transformers

        config = getattr(transformers, f"{name}Config")(**more)
        model = getattr(transformers, f"{name}Model")(config)
        return model, (torch.randn(1, 3, size, size),)

    return make


def seq2seq(name, **more):
    def make():
        import torch
        import transformers

        class Logits(torch.nn.Module):
            def __init__(self, model):
                super().__init__()
                self.model = model

            def forward(self, ids, targets):
                result = self.model(input_ids=ids, decoder_input_ids=targets, use_cache=False)
                return result.logits

        config = getattr(transformers, f"{name}Config")(**more)
        model = getattr(transformers, f"{name}ForConditionalGeneration")(config)
        ids = torch.randint(3, 100, (1, 64))
        return Logits(model), (ids, ids[:, :32].contiguous())

    return make


def mlp():
    import torch

    nn = torch.nn
    layers = [nn.Linear(512, 2048), nn.GELU(), nn.LayerNorm(2048), nn.Linear(2048, 512)]
    return nn.Sequential(*layers), (torch.randn(16, 512),)


def recurrent(kind, layers, steps):
    def make():
        import torch

        class Last(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.cells = getattr(torch.nn, kind)(128, 128, layers, batch_first=True)

            def forward(self, x):
                return self.cells(x)[0][:, -1]

        return Last(), (torch.randn(1, steps, 128),)

    return make


def selective_scan(layers, steps, width=64, state=16):
    """Layers of a state space model, as Mamba's, whose scan is a loop over all steps."""

    def make():
        import torch
        from torch import nn

        class Layer(nn.Module):
            def __init__(self):
                super().__init__()
                self.norm, self.both = nn.LayerNorm(width), nn.Linear(width, 2 * width)
                self.delta, self.pair = nn.Linear(width, width), nn.Linear(width, 2 * state)
                self.decay = nn.Parameter(-torch.rand(width, state))
                self.out = nn.Linear(width, width)

            def forward(self, x):
                y, gate = self.both(self.norm(x)).chunk(2, -1)
                y = nn.functional.silu(y)
                delta = nn.functional.softplus(self.delta(y))
                left, right = self.pair(y).chunk(2, -1)
                kept = torch.exp(delta[..., None] * self.decay)
                added = delta[..., None] * left[:, :, None] * y[..., None]
                h, rows = torch.zeros_like(kept[:, 0]), []
                for t in range(x.shape[1]):
                    h = kept[:, t] * h + added[:, t]
                    rows.append((h * right[:, t][:, None]).sum(-1))
                return x + self.out(torch.stack(rows, 1) * nn.functional.silu(gate))

        return nn.Sequential(*(Layer() for _ in range(layers))), (torch.randn(2, steps, width),)

    return make


WIDE = {"hidden_size": 512, "num_attention_heads": 8, "intermediate_size": 2048}
DEEP = {**WIDE, "num_hidden_layers": 8, **SMALL}
LLAMA = {**DEEP, "num_key_value_heads": 4}
MODELS = {
    "mlp": mlp,
    "bert": encoder("Bert", **DEEP),
    "bert_32_layers": encoder("Bert", **{**DEEP, "num_hidden_layers": 32}),
    "roberta": encoder("Roberta", **DEEP),
    "distilbert": encoder("DistilBert", dim=512, hidden_dim=2048, n_layers=6, n_heads=8),
    "electra": encoder("Electra", **DEEP),
    "gpt2": causal("GPT2", vocab_size=1000, n_embd=512, n_layer=8, n_head=8),
    "llama": causal("Llama", **LLAMA),
    "qwen2": causal("Qwen2", **LLAMA),
    "gemma": causal("Gemma", **LLAMA, head_dim=64),
    "mistral": causal("Mistral", **LLAMA),
    "opt": causal("OPT", **DEEP, ffn_dim=2048),
    "phi": causal("Phi", **DEEP),
    "bart": seq2seq("Bart", vocab_size=1000, d_model=512, encoder_layers=6, decoder_layers=6),
    "t5": seq2seq("T5", vocab_size=1000, d_model=512, num_layers=6),
    "vit_hf": pixels("ViT", 224, **{**WIDE, "num_hidden_layers": 8}),
    "deit": pixels("DeiT", 224, **{**WIDE, "num_hidden_layers": 8}),
    "clip_vision": pixels("CLIPVision", 224, **{**WIDE, "num_hidden_layers": 8}),
    "segformer": pixels("Segformer", 256),
    "convnextv2": pixels("ConvNextV2", 224),
    "vit_b_16": vision("vit_b_16"),
    "swin_t": vision("swin_t"),
    "maxvit_t": vision("maxvit_t"),
    "efficientnet_v2_s": vision("efficientnet_v2_s"),
    "resnet18": vision("resnet18"),
    "resnet50": vision("resnet50"),
    "mobilenet_v3_small": vision("mobilenet_v3_small"),
    "convnext_tiny": vision("convnext_tiny"),
    "densenet121": vision("densenet121"),
    "regnet_y_400mf": vision("regnet_y_400mf"),
    "lstm_512_steps": recurrent("LSTM", 2, 512),
    "gru_512_steps": recurrent("GRU", 6, 512),
    "scan_512_steps": selective_scan(4, 512),
}


def one(name: str, door: str, device: str, artifact: str) -> dict:
    """In a process of its own: the seconds of a door."""
    started = time.perf_counter()
    import torch

    torch.manual_seed(0)
    imported = time.perf_counter()
    wrap = None
    if door != "artifact":
        model, args = MODELS[name]()
        model = model.eval().to(device)
    else:
        _, args = MODELS[name]()
    args = tuple(a.to(device) for a in args)
    if device.startswith("cuda"):
        torch.ones(1, device=device).add(1).sum().item()
    import kiln  # noqa: F401

    made = time.perf_counter()
    stages: dict[str, float] = {}
    with torch.no_grad():
        if door == "kiln":
            wrap = kiln.compile(model, args)
        elif door == "artifact":
            wrap = kiln.load(artifact, device=device)
        else:
            backends = {"backend": "kiln", "dynamo": "eager"}
            wrap = torch.compile(model, backend=backends.get(door, door))
        result = wrap(*args)
        if device.startswith("cuda"):
            torch.cuda.synchronize()
    first = time.perf_counter() - made
    if door in ("kiln", "artifact"):
        stages = wrap.timings
    if door == "kiln" and artifact:
        try:
            wrap.save(artifact)
        except kiln.KilnError as error:
            stages["unsaved"] = str(error)
    del result
    found = {"first_s": first, "import_s": imported - started, "model_s": made - imported}
    return {**found, "stages": stages}


def run(name: str, door: str, device: str, artifact: str, caches: Path) -> dict:
    environment = {
        **os.environ,
        "KILN_CACHE": str(caches / "kiln"),
        "TORCHINDUCTOR_CACHE_DIR": str(caches / "inductor"),
        "TRITON_CACHE_DIR": str(caches / "triton"),
        "CUDA_CACHE_PATH": str(caches / "cuda"),
    }
    command = [sys.executable, __file__, "--one", name, door, device, artifact]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
    if done.returncode or not lines:
        words = (done.stderr.strip().splitlines() or ["nothing was said"])[-1]
        return {"error": words[:300]}
    return json.loads(lines[-1])


def measured(name: str, device: str, doors: list[str], repeats: int) -> dict:
    row: dict = {}
    with tempfile.TemporaryDirectory() as folder:
        artifact = str(Path(folder) / "m.kiln")
        for door in doors:
            cold, warm = [], []
            for n in range(repeats):
                caches = Path(folder) / f"{door}{n}"
                caches.mkdir()
                saved = artifact if door == "kiln" and not n else ""
                cold.append(run(name, door, device, saved, caches))
                warm.append(run(name, door, device, "", caches))
            row[door] = {"cold": middle(cold), "warm": middle(warm)}
            if door == "kiln" and Path(artifact).exists():
                caches = Path(folder) / "kiln0"
                row["artifact"] = middle(
                    [run(name, "artifact", device, artifact, caches) for _ in range(repeats)]
                )
    return row


def middle(runs: list[dict]) -> dict:
    """The run of the median."""
    fine = sorted((r for r in runs if "first_s" in r), key=lambda r: r["first_s"])
    return fine[(len(fine) - 1) // 2] if fine else runs[0]


def seconds(found: dict | None) -> str:
    if found is None:
        return "-"
    return f"{found['first_s']:.2f}" if "first_s" in found else "failed"


def main() -> None:
    if sys.argv[1:2] == ["--one"]:
        print(json.dumps(one(*sys.argv[2:6])))
        return
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--models", nargs="*", default=list(MODELS), choices=list(MODELS))
    parser.add_argument("--doors", nargs="*", default=["kiln", "backend", "dynamo", "inductor"])
    parser.add_argument("--repeats", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=1, help="models at once")
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    rows: dict[str, dict] = {}
    columns = [f"{d} {t}" for d in given.doors for t in ("cold", "warm")] + ["artifact"]
    print(f"{'model':<20}" + "".join(f"{c:>15}" for c in columns), flush=True)
    with ThreadPoolExecutor(given.jobs) as pool:
        found = pool.map(
            lambda name: measured(name, given.device, given.doors, given.repeats), given.models
        )
        for name, row in zip(given.models, found, strict=True):
            rows[name] = row
            cells = [row[d][t] for d in given.doors for t in ("cold", "warm")]
            texts = map(seconds, [*cells, row.get("artifact")])
            print(f"{name:<20}" + "".join(f"{text:>15}" for text in texts), flush=True)
            if given.out:
                given.out.write_text(json.dumps(rows, indent=1))
    for door in given.doors:
        for kind in ("cold", "warm"):
            taken = [r[door][kind]["first_s"] for r in rows.values() if "first_s" in r[door][kind]]
            if taken:
                mean = math.exp(statistics.fmean(map(math.log, taken)))
                text = f"geometric mean {mean:.2f} s, median {statistics.median(taken):.2f} s"
                print(f"{door} {kind}: {text}, longest {max(taken):.2f} s of {len(taken)}")


if __name__ == "__main__":
    main()
