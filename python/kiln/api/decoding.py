"""Greedy decoding of causal language models with the loop on the device: `Compiled.generate`.

A model is compiled as one step that has no inputs but a number of tokens: it reads the tokens at
its position from a buffer, fills the caches, and writes the token that follows behind them. So a
prompt in chunks and the tokens after it are runs of one program over the same buffers, and
many runs follow each other without the host. All of them are state, which is written in place.

`Step` is that program as a module, `Decoder` checks what is asked of it, `TokenBuffer` runs it. Of
transformers only `StaticCache` and its layers are known.
"""

from __future__ import annotations

import inspect
import threading
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

import torch

from kiln._native import InputError, ShapeError, UnsupportedError, UsageError
from kiln.tracing import export

if TYPE_CHECKING:
    from kiln.api.compiled import Compiled

#: Tokens of one run, largest first: prompts of any length are made of these.
CHUNKS = (512, 64, 8, 1)
#: In the buffer of tokens: not written yet.
EMPTY = -1

#: What `generation_config` may ask for beyond taking the likeliest token, with values that ask for
#: nothing.
_UNSUPPORTED_SETTINGS: dict[str, tuple[Any, ...]] = {
    "num_beams": (None, 1),
    "repetition_penalty": (None, 1.0),
    "encoder_repetition_penalty": (None, 1.0),
    "no_repeat_ngram_size": (None, 0),
    "min_length": (None, 0),
    "min_new_tokens": (None, 0),
    "bad_words_ids": (None,),
    "suppress_tokens": (None, []),
    "begin_suppress_tokens": (None, []),
    "forced_bos_token_id": (None,),
    "forced_eos_token_id": (None,),
    "sequence_bias": (None,),
    "exponential_decay_length_penalty": (None,),
    "guidance_scale": (None, 1.0),
    "penalty_alpha": (None, 0.0),
}


class Step(torch.nn.Module):
    """A causal language model as a step over its own buffers.

    `forward(offsets)`: `offsets` counts from 0, one for each token of the step. The tokens at
    `position` and behind it go through the model, whose keys and values go to the caches. The
    likeliest next token is written behind them, unless the buffer has one there, as it has of a
    prompt. Gives that token for each row.
    """

    tokens: torch.Tensor
    position: torch.Tensor

    def __init__(self, model: Any, batch_size: int, max_length: int) -> None:
        super().__init__()
        caches = _caches(model, batch_size)
        self.model = model
        self.max_length = max_length
        self.layers = len(caches)
        # As the model, so that export warns of training mode where it should.
        self.training = model.training
        keeps = inspect.signature(model.forward).parameters
        #: Logits of the last token are all that is needed.
        self.last = {"logits_to_keep": 1} if "logits_to_keep" in keeps else {}
        device = caches[0][0].device

        def buffer(name: str, value: torch.Tensor) -> None:
            self.register_buffer(name, value, persistent=False)

        for i, (key, value) in enumerate(caches):
            for name, like in ((f"key_{i}", key), (f"value_{i}", value)):
                rows, heads, _, width = like.shape
                buffer(name, like.new_zeros(rows, heads, max_length, width))
        tokens = torch.full((batch_size, max_length), EMPTY, dtype=torch.int64, device=device)
        buffer("tokens", tokens)
        buffer("position", torch.zeros(1, dtype=torch.int64, device=device))

    def forward(self, offsets: torch.Tensor) -> torch.Tensor:
        from transformers.cache_utils import Cache

        ids = self.tokens.index_select(1, self.position + offsets)
        # Made in each call of the tracing, of the module's buffers: only these are state.
        cache = Cache(layers=[self._layer(i) for i in range(self.layers)])
        result = self.model(input_ids=ids, past_key_values=cache, use_cache=True, **self.last)
        next_position = self.position + offsets.shape[0]
        likeliest = result.logits[:, -1].argmax(-1, keepdim=True)
        prompt_token = self.tokens.index_select(1, next_position)
        token = torch.where(prompt_token == EMPTY, likeliest, prompt_token)
        self.tokens.index_copy_(1, next_position, token)
        self.position.copy_(next_position)
        return token

    def _layer(self, i: int) -> Any:
        from transformers.cache_utils import StaticLayer

        # A window is in the mask; its layers keep all tokens, so that a step has no other form
        # once the window is full.
        layer: Any = StaticLayer(self.max_length)
        key, value = self.get_buffer(f"key_{i}"), self.get_buffer(f"value_{i}")
        layer.keys, layer.values, layer.is_initialized = key, value, True
        layer.dtype, layer.device = key.dtype, key.device
        layer.batch_size, layer.num_heads = key.shape[:2]
        layer.k_head_dim, layer.v_head_dim = key.shape[-1], value.shape[-1]
        # The layer counts it up; the step's position moves once.
        layer.cumulative_length = self.position[0].clone()
        return layer


def _caches(model: Any, batch_size: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Keys and values of each layer for one token, as the model allocates them."""
    config = getattr(model, "config", None)
    if not callable(getattr(model, "generate", None)) or config is None:
        raise UsageError(
            f"kiln.compile was given max_length, which is for causal language models of "
            f"transformers, and {type(model).__name__} is none: leave max_length out and pass "
            "example inputs"
        )
    if getattr(config, "is_encoder_decoder", False):
        raise UnsupportedError(
            f"{type(model).__name__} has an encoder, and Compiled.generate is for decoders alone: "
            "use model.generate with CompileConfig(backend='kiln')"
        )
    from transformers import StaticCache
    from transformers.cache_utils import StaticLayer

    device = next(model.parameters()).device
    ids = torch.zeros(batch_size, 1, dtype=torch.int64, device=device)
    try:
        cache = StaticCache(config=config, max_cache_len=1)
        with torch.no_grad():
            model(input_ids=ids, past_key_values=cache, use_cache=True)
    except Exception as error:
        raise UnsupportedError(
            f"{type(model).__name__} does not run with a StaticCache ({_first_line(error)}): use "
            "model.generate"
        ) from error
    for i, layer in enumerate(cache.layers):
        is_static = isinstance(layer, StaticLayer) and hasattr(layer, "cumulative_length")
        if not is_static or not layer.is_initialized:
            raise UnsupportedError(
                f"layer {i} of {type(model).__name__} keeps a {type(layer).__name__}, which "
                "Compiled.generate does not fill: use model.generate"
            )
    return [(layer.keys, layer.values) for layer in cache.layers]


def _first_line(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__


def step(model: Any, batch_size: int, max_length: int) -> Step:
    """The decoding step of a model. Raises `kiln.UsageError` if the lengths do not fit it."""
    if max_length < 2 or batch_size < 1:
        raise UsageError(
            f"kiln.compile was given max_length={max_length} and batch_size={batch_size}: give at "
            "least 2 tokens and one row"
        )
    config = getattr(model, "config", None)
    positions = getattr(config, "max_position_embeddings", None)
    if positions is not None and max_length > positions:
        raise UsageError(
            f"kiln.compile was given max_length={max_length}, and {type(model).__name__} has "
            f"{positions} positions: give at most {positions}"
        )
    return Step(model, batch_size, max_length)


def examples(module: Step) -> tuple[tuple[torch.Tensor], export.Dynamic]:
    """Example inputs of a step, and the range of tokens that it may read. One position stays free
    for the next token."""
    largest = min(CHUNKS[0], module.max_length - 1)
    offsets = torch.arange(min(2, largest), device=module.tokens.device)
    if largest == 1:
        return (offsets,), None
    return (offsets,), ({0: torch.export.Dim("n", min=1, max=largest)},)


def chunks(count: int, largest: int) -> Iterator[int]:
    """Splits a prompt of `count` tokens into runs of the lengths in `CHUNKS`.

    >>> list(chunks(75, 511)), list(chunks(10, 7))
    ([64, 8, 1, 1, 1], [1, 1, 1, 1, 1, 1, 1, 1, 1, 1])
    """
    for chunk in CHUNKS:
        while chunk <= min(count, largest):
            yield chunk
            count -= chunk


def look_ahead(device: torch.device) -> tuple[int, int]:
    """The number of tokens between two checks for the end, and how many checks behind the device
    the host is."""
    return (16, 1) if device.type == "cuda" else (1, 0)


class Decoder:
    """Checks the arguments of `Compiled.generate`, and runs it."""

    def __init__(self, model: Any, batch_size: int, max_length: int) -> None:
        self.model = model
        self.batch_size = batch_size
        self.max_length = max_length
        #: The buffers are those of one call at a time.
        self._lock = threading.Lock()

    def generate(
        self,
        compiled: Compiled,
        ids: torch.Tensor,
        max_new_tokens: int,
        eos: int | Iterable[int] | None,
    ) -> torch.Tensor:
        """See `Compiled.generate`."""
        ids, ends = self._checked(ids, max_new_tokens), self._ends(eos)
        if max_new_tokens == 0:
            return ids.clone()
        with self._lock, torch.no_grad():
            found = TokenBuffer(compiled, ids).read().generate_until(max_new_tokens, ends)
        return self._cut(found, ids.shape[1], ends) if ends else found

    def _cut(self, found: torch.Tensor, length: int, ends: list[int]) -> torch.Tensor:
        """The tokens up to the end of the longest text, with padding behind the ends of others."""
        new = found[:, length:]
        is_end = torch.isin(new, torch.tensor(ends, device=new.device))
        # How many ends there are before each token.
        behind = is_end.cumsum(1) - is_end.long()
        longest = int((behind == 0).sum(1).max())
        pad = getattr(self.model.generation_config, "pad_token_id", None)
        new = new.masked_fill(behind > 0, ends[0] if pad is None else int(pad))
        return torch.cat([found[:, :length], new[:, :longest]], 1)

    def _ends(self, eos: int | Iterable[int] | None) -> list[int]:
        if eos is None:
            eos = getattr(self.model.generation_config, "eos_token_id", None)
        if eos is None:
            return []
        if isinstance(eos, torch.Tensor):
            eos = eos.flatten().tolist()
        return [int(eos)] if isinstance(eos, int) else [int(e) for e in eos]

    def _checked(self, ids: Any, max_new_tokens: int) -> torch.Tensor:
        config = self.model.generation_config
        for name, defaults in _UNSUPPORTED_SETTINGS.items():
            value = getattr(config, name, None)
            if value not in defaults:
                raise UsageError(
                    f"the model's generation_config has {name}={value!r}, which Compiled.generate "
                    f"does not do: set model.generation_config.{name} to None, or use "
                    "model.generate with CompileConfig(backend='kiln')"
                )
        if not isinstance(ids, torch.Tensor) or ids.dim() != 2 or ids.is_floating_point():
            description = f"a {type(ids).__name__}"
            if isinstance(ids, torch.Tensor):
                description = f"a tensor of shape {list(ids.shape)} and {ids.dtype}"
            raise InputError(
                f"Compiled.generate was given {description}: pass the ids of a prompt's tokens, a "
                "tensor of integers with a row for each text"
            )
        rows, length = ids.shape
        if rows != self.batch_size:
            raise ShapeError(
                f"Compiled.generate was given {rows} rows, and the model was compiled for "
                f"{self.batch_size}: pass {self.batch_size}, or compile it with "
                f"kiln.compile(model, max_length={self.max_length}, batch_size={rows})"
            )
        if length == 0 or max_new_tokens < 0:
            raise InputError(
                f"Compiled.generate was given {length} tokens and max_new_tokens="
                f"{max_new_tokens}: give at least one token, and no negative number"
            )
        if length + max_new_tokens > self.max_length:
            raise ShapeError(
                f"Compiled.generate was asked for {length} + {max_new_tokens} tokens, and the "
                f"model was compiled for {self.max_length}: ask for at most "
                f"{max(self.max_length - length, 0)} new ones, or compile it with "
                f"kiln.compile(model, max_length={length + max_new_tokens})"
            )
        vocabulary_size = self.model.get_input_embeddings().num_embeddings
        lowest, highest = (int(n) for n in ids.aminmax())
        if lowest < 0 or highest >= vocabulary_size:
            unknown = lowest if lowest < 0 else highest
            raise InputError(
                f"Compiled.generate was given the token {unknown}, and the model has "
                f"{vocabulary_size}: use the model's own tokenizer"
            )
        return ids.to(torch.int64)


class TokenBuffer:
    """The buffers of a compiled step with the tokens of one call of `generate`."""

    def __init__(self, compiled: Compiled, ids: torch.Tensor) -> None:
        self.compiled = compiled
        state = compiled.state
        for name, tensor in state.items():
            if name.startswith(("key_", "value_")):
                tensor.zero_()
        state["position"].zero_()
        self.tokens = state["tokens"].fill_(EMPTY)
        self.device = self.tokens.device
        #: How many tokens were given, and are known by now.
        self.prompt_length = self.known_length = ids.shape[1]
        self.tokens[:, : self.prompt_length] = ids

    def read(self) -> TokenBuffer:
        """Runs the prompt. One more token is known afterwards."""
        for chunk in chunks(self.prompt_length, self.tokens.shape[1] - 1):
            self.compiled(torch.arange(chunk, device=self.device))
        self.known_length += 1
        return self

    def generate_until(self, count: int, ends: list[int]) -> torch.Tensor:
        """Generates `count` tokens, or fewer if all texts end before. Gives prompt and new tokens.

        On a GPU the end is seen late: the device runs on while the host checks earlier tokens.
        """
        total = self.prompt_length + count
        one_token = torch.arange(1, device=self.device)
        steps_per_look, looks_behind = look_ahead(self.device)
        if not ends:
            steps_per_look = total
        ended = torch.zeros(self.tokens.shape[0], dtype=torch.bool)
        pending_looks = [self._look(self.prompt_length)] if ends else []
        while self.known_length < total:
            if len(pending_looks) > looks_behind:
                ended |= _have_ended(pending_looks.pop(0), ends)
                if ended.all():
                    break
            step_count = min(steps_per_look, total - self.known_length)
            self.compiled.steps(step_count, one_token)
            self.known_length += step_count
            if ends:
                pending_looks.append(self._look(self.known_length - step_count))
        return self.tokens[:, : self.known_length].clone()

    def _look(self, start: int) -> tuple[torch.Tensor, torch.cuda.Event | None]:
        """Copies the tokens from `start` on to the host. The copy is complete once the event is
        reached."""
        new = self.tokens[:, start : self.known_length].contiguous()
        if self.device.type != "cuda":
            return new, None
        host = torch.empty(new.shape, dtype=new.dtype, pin_memory=True)
        host.copy_(new, non_blocking=True)
        event = torch.cuda.Event()
        event.record()
        return host, event


def _have_ended(look: tuple[torch.Tensor, torch.cuda.Event | None], ends: list[int]) -> Any:
    """Which texts have one of the end tokens among these."""
    new, event = look
    if event is not None:
        event.synchronize()
    return torch.isin(new, torch.tensor(ends)).any(1)
