"""Small models of every kind through both doors: `torch.compile` and `kiln.compile`.

Every operator of each model is written; results are those of eager.
"""

from __future__ import annotations

import json

import pytest
import torch
from torch import nn

import kiln
from kiln import pieces
from kiln.api import backend
from kiln.lowering import program_writer

transformers = pytest.importorskip("transformers")
torchvision = pytest.importorskip("torchvision")

#: Sizes that most configurations of transformers share.
SMALL = {
    "vocab_size": 128,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 64,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}


class Logits(nn.Module):
    """A causal language model without a cache in its result."""

    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, input_ids):
        return self.model(input_ids=input_ids, use_cache=False).logits


def ids():
    return torch.randint(3, 128, (2, 16))


def encoder(name, **more):
    def make():
        config = getattr(transformers, f"{name}Config")(**{**SMALL, **more})
        model = getattr(transformers, f"{name}Model")(config)
        tokens = ids()
        return model, (), {"input_ids": tokens, "attention_mask": torch.ones_like(tokens)}

    return make


def causal(name, **more):
    def make():
        config = getattr(transformers, f"{name}Config")(**{**SMALL, **more})
        return Logits(transformers.AutoModelForCausalLM.from_config(config)), (ids(),), {}

    return make


def vision(name, size=64, **more):
    def make():
        model = getattr(torchvision.models, name)(weights=None, num_classes=10, **more)
        return model, (torch.randn(2, 3, size, size),), {}

    return make


def t5():
    config = transformers.T5Config(
        vocab_size=128, d_model=32, d_kv=8, d_ff=64, num_layers=2, num_heads=4
    )

    class Both(nn.Module):
        def __init__(self):
            super().__init__()
            self.model = transformers.T5ForConditionalGeneration(config)

        def forward(self, input_ids, decoder_input_ids):
            return self.model(
                input_ids=input_ids, decoder_input_ids=decoder_input_ids, use_cache=False
            ).logits

    return Both(), (ids(), ids()[:, :5]), {}


def vit():
    model = torchvision.models.VisionTransformer(
        image_size=32, patch_size=8, num_layers=2, num_heads=4, hidden_dim=32, mlp_dim=64
    )
    return model, (torch.randn(2, 3, 32, 32),), {}


def clip_vision():
    config = transformers.CLIPVisionConfig(
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        image_size=32,
        patch_size=8,
    )
    return transformers.CLIPVisionModel(config), (torch.randn(2, 3, 32, 32),), {}


def wav2vec():
    config = transformers.Wav2Vec2Config(
        **{k: SMALL[k] for k in ("hidden_size", "intermediate_size", "num_attention_heads")},
        num_hidden_layers=2,
        conv_dim=(16, 16),
        conv_stride=(5, 2),
        conv_kernel=(10, 3),
        num_feat_extract_layers=2,
        num_conv_pos_embeddings=4,
        num_conv_pos_embedding_groups=2,
    )
    return transformers.Wav2Vec2Model(config), (torch.randn(1, 800),), {}


MODELS = {
    "mlp": lambda: (
        nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.LayerNorm(16), nn.Linear(16, 4)),
        (torch.randn(3, 8),),
        {},
    ),
    "bert": encoder("Bert"),
    "distilbert": encoder("DistilBert", dim=32, hidden_dim=64, n_layers=2, n_heads=4),
    "gpt2": causal("GPT2", n_embd=32, n_layer=2, n_head=4, n_positions=64),
    "llama": causal("Llama", num_key_value_heads=2),
    "qwen2": causal("Qwen2", num_key_value_heads=2),
    "gemma": causal("Gemma", num_key_value_heads=2, head_dim=8),
    "t5": t5,
    "vit": vit,
    "clip_vision": clip_vision,
    "wav2vec2": wav2vec,
    "resnet18": vision("resnet18"),
    "mobilenet_v3_small": vision("mobilenet_v3_small"),
    "convnext": lambda: (
        torchvision.models.ConvNeXt(
            [torchvision.models.convnext.CNBlockConfig(16, None, 2)], num_classes=10
        ),
        (torch.randn(2, 3, 32, 32),),
        {},
    ),
}


def tensors(result):
    return [t for t in torch.utils._pytree.tree_leaves(result) if isinstance(t, torch.Tensor)]


def close(got, want):
    got, want = tensors(got), tensors(want)
    assert len(got) == len(want)
    for a, b in zip(got, want, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", MODELS)
def test_both_doors(name):
    model, args, kwargs = MODELS[name]()
    model.eval()
    with torch.no_grad(), pieces.collecting() as found:
        want = model(*args, **kwargs)
        run = torch.compile(model, backend=backend.kiln, options={"fallback": "error"})
        got = run(*args, **kwargs)
        assert type(got) is type(want)
        close(got, want)
        assert found and all(piece.state == "compiled" for piece in found)
        exported = torch.export.export(model, args, kwargs, strict=False)
        got = kiln.compile(exported)(*args, **kwargs)
        assert type(got) is type(want)
        close(got, want)


def test_experts_in_an_archive(tmp_path):
    """Groups of tokens whose sizes are data are refused; the form that the refusal names is not."""
    sizes = {"num_key_value_heads": 2, "num_local_experts": 4, "num_experts_per_tok": 2}
    model, args, _ = causal("Mixtral", **sizes)()
    model.eval()
    path = str(tmp_path / "model.pt2")
    with torch.no_grad():
        want = model(*args)
        torch.export.save(torch.export.export(model, args, strict=False), path)
        with pytest.raises(
            kiln.UnsupportedError, match=r"set_experts_implementation\(\"batched_mm"
        ):
            kiln.load(path)
        model.model.set_experts_implementation("batched_mm")
        torch.export.save(torch.export.export(model, args, strict=False), path)
        close(kiln.load(path)(*args), want)


@pytest.mark.fake
@pytest.mark.parametrize("name", ["bert", "llama", "vit", "resnet18"])
def test_both_doors_give_the_same_operators(name):
    model, args, kwargs = MODELS[name]()
    model.eval()
    with torch.no_grad(), pieces.collecting() as found:
        torch.compile(model, backend=backend.kiln)(*args, **kwargs)
        exported = torch.export.export(model, args, kwargs, strict=False)
    (piece,) = found
    (engine,) = piece.engines

    def operators(engine):
        return [call["name"] for call in engine.program["calls"]]

    assert operators(engine) == operators(kiln.compile(exported).engine)


@pytest.mark.parametrize("name", ["bert", "llama"])
def test_one_dynamic_graph(name):
    model, _, kwargs = MODELS[name]()
    model.eval()
    with torch.no_grad(), pieces.collecting() as found:
        run = torch.compile(model, backend=backend.kiln, dynamic=True)
        for shape in ((2, 16), (3, 9), (4, 20)):
            tokens = torch.randint(3, 128, shape)
            inputs = {"attention_mask": torch.ones_like(tokens)} if kwargs else {}
            close(run(input_ids=tokens, **inputs), model(input_ids=tokens, **inputs))
    (piece,) = found
    (engine,) = piece.engines
    assert len(engine.bindings()) == 3


def test_decoding_with_a_static_cache():
    config = transformers.LlamaConfig(**SMALL, num_key_value_heads=2)
    model = transformers.LlamaForCausalLM(config).eval()
    prompt = torch.tensor([[5, 17, 101]])
    chosen = transformers.CompileConfig(backend=backend.kiln, fullgraph=True, dynamic=None)
    chosen._compile_all_devices = True
    options = {"max_new_tokens": 8, "do_sample": False, "pad_token_id": 0}
    with pieces.collecting() as found:
        want = model.generate(prompt, **options)
        got = model.generate(
            prompt, **options, cache_implementation="static", compile_config=chosen
        )
    assert torch.equal(got, want)
    assert found and all(piece.state == "compiled" for piece in found)


@pytest.mark.fake
def test_writing_takes_milliseconds():
    import time

    config = transformers.BertConfig(**{**SMALL, "num_hidden_layers": 12})
    model = transformers.BertModel(config).eval()
    with torch.no_grad():
        exported = torch.export.export(model, (ids(),), strict=False).run_decompositions({})
    times = []
    for _ in range(5):
        started = time.perf_counter()
        program = program_writer.write(exported.graph, exported.graph_module)
        times.append(time.perf_counter() - started)
    assert len(json.loads(program.text)["calls"]) > 250
    assert min(times) < 0.045
