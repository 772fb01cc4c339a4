"""Test files that are not TorchScript archives. `foreign.py write FOLDER` writes them, with a model and inputs. `fix` runs the lines of
Python in each FILE.lines as a user would, with `model` and `inputs` defined, and keeps the archive they write as FILE.fixed.pt.
`inputs` runs good.lines, which write an inputs file."""

import io
import os
import pickle
import shutil
import sys
import warnings
from pathlib import Path

os.environ["HF_HUB_OFFLINE"] = "1"
warnings.simplefilter("ignore")

import numpy  # noqa: E402
import safetensors.torch  # noqa: E402
import torch  # noqa: E402
import transformers  # noqa: E402
from torch import nn  # noqa: E402

mode, folder = sys.argv[1], Path(sys.argv[2])
os.chdir(folder)
torch.manual_seed(0)


def fresh():
    return nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Dropout(0.5), nn.ReLU())


def field(number, payload):
    """A field of a protobuf message: a number, or bytes with their length (below 128)."""
    if isinstance(payload, int):
        return bytes([number << 3, payload])
    return bytes([number << 3 | 2, len(payload)]) + payload


inputs = torch.randn(8, 4)
ids = torch.ones(1, 8, dtype=torch.long)
if mode == "write":
    model = fresh()
    weights = model.state_dict()
    torch.save(weights, "weights.onnx")
    torch.save(weights, "old.pt", _use_new_zipfile_serialization=False)
    torch.save(weights, "new_pickle.pt", pickle_protocol=4)
    optimizer = torch.optim.Adam(model.parameters())
    torch.save({"epoch": 3, "model_state_dict": weights, "optimizer": optimizer.state_dict()}, "checkpoint.pt2")
    torch.save(model, "module.pth")
    torch.save(inputs, "tensor.pt")
    torch.jit.trace(model, inputs, check_trace=False).save("train.kiln")
    model.eval()
    torch.jit.trace(model, inputs).save("good.pt")
    os.mkdir("some")
    shutil.copy("good.pt", "some/good.pt")
    buffer = io.BytesIO()
    torch.export.save(torch.export.export(model, (inputs,)), buffer)
    Path("program.pt").write_bytes(buffer.getvalue())
    safetensors.torch.save_file({k: v.clone() for k, v in weights.items()}, "tensors")
    safetensors.torch.save_file({"0": inputs}, "in.safetensors")
    safetensors.torch.save_file({"input": inputs}, "named.safetensors")
    safetensors.torch.save_file({"inptu": inputs}, "misnamed.safetensors")
    safetensors.torch.save_file({"0": ids}, "ids.safetensors")
    config = transformers.BertConfig(
        vocab_size=32, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16, max_position_embeddings=16
    )
    transformers.BertModel(config).save_pretrained("transformers")
    # IR version, producer, a graph with a name, and the opset version.
    onnx = field(1, 8) + field(2, b"pytorch") + field(7, field(2, b"main")) + field(8, field(2, 17))
    Path("graph.pt").write_bytes(onnx)
    Path("llama.pt").write_bytes(b"GGUF\x03\0\0\0" + bytes(64))
    Path("dict.pkl").write_bytes(pickle.dumps({"a": 1}))
    numpy.savez("arrays.npz", x=numpy.zeros(3))
    Path("source.pt").write_text("# a model\nimport torch\n")
    Path("pointer.pt").write_text("version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n")
    Path("page.pt").write_text("<!DOCTYPE html><html></html>")
elif mode == "fix":
    for lines in folder.glob("*.lines"):
        name = lines.name.removesuffix(".lines")
        scope = {"torch": torch, "safetensors": safetensors, "transformers": transformers, "model": fresh()}
        scope["inputs"] = ids if name == "transformers" else inputs
        exec(lines.read_text(), scope)
        os.replace("model.pt", f"{name}.fixed.pt")
else:
    scope = {name: inputs for name in ["x", "input"]}
    exec(Path("good.lines").read_text(), scope)
    shutil.copy("in.safetensors", "written.safetensors")
