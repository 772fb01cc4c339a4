"""`Compiled.generate`: eager's tokens for every kind of model, prompts of all lengths, refusals."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import kiln
from kiln.api import decoding

transformers = pytest.importorskip("transformers")

SMALL = {
    "vocab_size": 128,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 128,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}
#: Wide enough for random models to say many different tokens.
WIDE = {"initializer_range": 0.3}


def causal(name, **more):
    config = getattr(transformers, f"{name}Config")(**{**SMALL, **WIDE, **more})
    return transformers.AutoModelForCausalLM.from_config(config).eval()


def llama(**more):
    return causal("Llama", num_key_value_heads=2, **more)


MODELS = {
    "llama": llama,
    "gpt2": lambda: causal("GPT2", n_embd=32, n_layer=2, n_head=4, n_positions=128),
    "qwen2": lambda: causal("Qwen2", num_key_value_heads=2),
    # Layers with a window and without, in turn; the window is shorter than the texts.
    "gemma2": lambda: causal(
        "Gemma2", num_key_value_heads=2, head_dim=8, sliding_window=16, tie_word_embeddings=False
    ),
}
LENGTH = 100


def prompt(length, rows=1):
    return torch.randint(3, 128, (rows, length))


def eager(model, ids, count, **options):
    return model.generate(ids, max_new_tokens=count, do_sample=False, **options)


@pytest.mark.parametrize("name", MODELS)
def test_the_tokens_are_those_of_eager(name):
    model = MODELS[name]()
    compiled = kiln.compile(model, max_length=LENGTH)
    seen = set()
    for length, count in ((1, 16), (7, 12), (75, 25), (9, 4)):
        ids = prompt(length)
        want = eager(model, ids, count, eos_token_id=None)
        got = compiled.generate(ids, count, eos=())
        assert got.dtype is torch.int64 and torch.equal(got, want), (length, got, want)
        seen |= set(want[0, length:].tolist())
    # Else a wrong cache would not show.
    assert len(seen) > 10
    made = [(b["sizes"], b["hits"]) for b in compiled.bindings()]
    ids = prompt(74)
    assert torch.equal(compiled.generate(ids, 5, ()), eager(model, ids, 5, eos_token_id=None))
    again = [(b["sizes"], b["hits"]) for b in compiled.bindings()]
    assert sorted(n for s, _ in again for n in s.values()) == [1, 8, 64]
    assert len(again) == len(made), "nothing is compiled again"


def test_a_text_ends_where_eager_ends_it():
    model = llama()
    compiled = kiln.compile(model, max_length=LENGTH)
    ids = prompt(5)
    free = compiled.generate(ids, 30, eos=())[0, 5:].tolist()
    # Somewhere in the middle, and where the first new token is the end.
    middle = next(t for t in free[5:] if t not in free[:5])
    for end in (middle, free[0]):
        want = eager(model, ids, 30, eos_token_id=end)
        assert 5 < want.shape[1] < 35
        for eos in (end, [end], (1, end), torch.tensor([end])):
            assert torch.equal(compiled.generate(ids, 30, eos), want)
    # The model's own.
    model.generation_config.eos_token_id = [2, middle]
    assert torch.equal(compiled.generate(ids, 30), eager(model, ids, 30))


def test_texts_of_a_batch_end_apart():
    model = llama()
    compiled = kiln.compile(model, max_length=LENGTH, batch_size=3)
    ids = prompt(9, rows=3)
    free = eager(model, ids, 30, eos_token_id=None)
    assert torch.equal(compiled.generate(ids, 30, ()), free)
    new = free[:, 9:].tolist()
    ends = [new[0][4], new[1][11]]
    want = eager(model, ids, 30, eos_token_id=ends)
    assert (want == 0).any(), "one text is padded"
    assert torch.equal(compiled.generate(ids, 30, ends), want)


def test_what_is_seen_late_is_cut(monkeypatch):
    """As on a GPU, where the host looks at tokens while the device goes on."""
    model = llama()
    compiled = kiln.compile(model, max_length=LENGTH)
    ids = prompt(5)
    end = int(compiled.generate(ids, 30, eos=())[0, 12])
    want = eager(model, ids, 60, eos_token_id=end)
    run = []
    steps = compiled.steps
    monkeypatch.setattr(compiled, "steps", lambda n, *args: (run.append(n), steps(n, *args))[1])
    monkeypatch.setattr(decoding, "look_ahead", lambda device: (8, 1))
    assert torch.equal(compiled.generate(ids, 60, end), want)
    assert run == [8] * len(run) and sum(run) >= want.shape[1] - 5
    assert sum(run) < 60, "it ends early"


def test_the_end_of_the_cache_can_be_reached():
    model = llama()
    compiled = kiln.compile(model, max_length=20)
    for length in (1, 19, 12):
        ids = prompt(length)
        got = compiled.generate(ids, 20 - length, eos=())
        assert torch.equal(got, eager(model, ids, 20 - length, eos_token_id=None))
    ids = prompt(20)
    assert torch.equal(compiled.generate(ids, 0), ids)


def test_one_program_holds_one_copy_of_caches_and_weights():
    model = llama()
    compiled = kiln.compile(model, max_length=LENGTH)
    state = compiled.state
    assert sorted(state) == ["key_0", "key_1", "position", "tokens", "value_0", "value_1"]
    assert state["key_0"].shape == (1, 2, LENGTH, 8)
    compiled.generate(prompt(7), 5, eos=())
    assert state["position"].item() == 11 and (state["tokens"][0, 12:] == decoding.EMPTY).all()
    # Weights are the model's: what is written to them is seen.
    with torch.no_grad():
        model.lm_head.weight.neg_()
    ids = prompt(7)
    assert torch.equal(compiled.generate(ids, 9, ()), eager(model, ids, 9, eos_token_id=None))


def test_sizes_are_compiled_ahead():
    compiled = kiln.compile(llama(), max_length=LENGTH, warm=[(1,), (8,)])
    assert len(compiled.bindings()) == 2
    compiled.generate(prompt(9), 4, eos=())
    assert len(compiled.bindings()) == 2
    assert repr(compiled).startswith("Compiled(LlamaForCausalLM, cpu")


@pytest.mark.native
def test_caches_are_written_in_place():
    """A step writes the new rows of a cache, and holds no other copy of it."""
    model = llama(max_position_embeddings=2048)
    compiled = kiln.compile(model, max_length=2048, warm=[(1,)])
    report = compiled.explain((1,))
    assert report.fallbacks == []
    assert sum("attention" in kernel.name for kernel in report.kernels) == 2
    caches = [t.nbytes for name, t in compiled.state.items() if name.startswith(("key", "value"))]
    assert compiled.bindings()[0]["bytes"] < sum(caches) / 2


@pytest.mark.native
def test_a_step_is_saved_and_goes_on_without_the_model(tmp_path):
    model = llama()
    kiln.compile(model, max_length=LENGTH).save(tmp_path / "step.kiln", (1,))
    loaded = kiln.load(tmp_path / "step.kiln")
    ids = prompt(6)
    loaded.state["tokens"][:, :6] = ids
    # The prompt is in the buffer: its tokens are read one by one, then new ones are chosen.
    last = loaded.steps(6 + 10 - 1, torch.arange(1))
    want = eager(model, ids, 10, eos_token_id=None)
    assert torch.equal(loaded.state["tokens"][:, :16], want) and last == want[0, -1]


def refused(kind, words, call):
    with pytest.raises(kind, match=words):
        call()


def test_what_it_cannot_do_it_refuses():
    model = llama()
    compiled = kiln.compile(model, max_length=LENGTH)
    generate = compiled.generate
    refused(kiln.ShapeError, r"90 \+ 11 tokens.*at most 10 new", lambda: generate(prompt(90), 11))
    refused(kiln.ShapeError, r"2 rows.*batch_size=2", lambda: generate(prompt(3, 2), 4))
    refused(kiln.InputError, r"a list: pass the ids", lambda: generate([[1, 2]], 4))
    refused(kiln.InputError, r"shape \[3\]", lambda: generate(prompt(3)[0], 4))
    refused(kiln.InputError, r"torch.float32", lambda: generate(prompt(3).float(), 4))
    refused(kiln.InputError, r"at least one token", lambda: generate(prompt(0), 4))
    refused(kiln.InputError, r"max_new_tokens=-1", lambda: generate(prompt(3), -1))
    for token, words in ((128, "token 128, and the model has 128"), (-1, "token -1")):
        refused(kiln.InputError, words, lambda t=token: generate(torch.full((1, 3), t), 1))
    refused(kiln.UsageError, "time generate", compiled.bench)
    refused(TypeError, "do_sample", lambda: generate(prompt(3), 4, do_sample=True))
    model.generation_config.repetition_penalty = 1.1
    refused(kiln.UsageError, r"repetition_penalty=1.1.*to None", lambda: generate(prompt(3), 4))


def test_what_is_no_language_model_is_refused():
    relu, x = nn.ReLU().eval(), torch.ones(3)
    refused(kiln.UsageError, r"ReLU is none: leave", lambda: kiln.compile(relu, max_length=8))
    compiled = kiln.compile(relu, (x,))
    refused(kiln.UsageError, r"max_length=\.\.\.", lambda: compiled.generate(prompt(3), 4))
    model = llama()
    refused(kiln.UsageError, "leave out", lambda: kiln.compile(model, (prompt(3),), max_length=8))
    refused(kiln.UsageError, "128 positions", lambda: kiln.compile(model, max_length=129))
    refused(kiln.UsageError, "at least 2", lambda: kiln.compile(model, max_length=1))
    t5 = transformers.T5ForConditionalGeneration(
        transformers.T5Config(
            vocab_size=128, d_model=32, d_kv=8, d_ff=64, num_layers=1, num_heads=4
        )
    )
    refused(kiln.UnsupportedError, "has an encoder", lambda: kiln.compile(t5, max_length=8))
    mamba = causal("Mamba", state_size=4)
    refused(kiln.UnsupportedError, "StaticCache|keeps a", lambda: kiln.compile(mamba, max_length=8))


class Sums(nn.Module):
    """Adds its input to what it holds, and counts calls."""

    def __init__(self):
        super().__init__()
        self.register_buffer("total", torch.zeros(2))
        self.register_buffer("calls", torch.zeros((), dtype=torch.int64))

    def forward(self, x):
        self.calls += 1
        self.total += x
        return self.total * 1, self.calls * 1


def test_steps_read_what_the_last_one_left():
    compiled = kiln.compile(Sums().eval(), (torch.ones(2),))
    x = torch.tensor([1.0, 2.0])
    for count, want in ((1, 1), (5, 6), (3, 9)):
        total, calls = compiled.steps(count, x)
        assert total.tolist() == [want, 2.0 * want] and calls.item() == want
        assert compiled.state["calls"].item() == want
        assert compiled.state["total"].tolist() == [want, 2.0 * want]
    refused(kiln.UsageError, "at least one step", lambda: compiled.steps(0, x))


def test_steps_write_to_their_inputs_as_calls_do():
    class Grows(nn.Module):
        def forward(self, x, by):
            x.add_(by)
            return x * 10

    compiled = kiln.compile(Grows().eval(), (torch.zeros(4), torch.ones(4)))
    for x in (torch.zeros(4), torch.zeros(4, 2)[:, 0]):
        got = compiled.steps(3, x, torch.full((4,), 2.0))
        assert got.tolist() == [60.0] * 4 and x.tolist() == [6.0] * 4
