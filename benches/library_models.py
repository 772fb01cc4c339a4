"""Small models of torchvision, transformers and timm with random weights: `MODELS[name]()` -> (module, args, kwargs).

Architectures are the libraries' own, with few layers and narrow widths, so that a CPU compiles and runs each in seconds. None of them was
used to tune Kiln.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

Example = tuple[nn.Module, tuple[Any, ...], dict[str, Any]]
MODELS: dict[str, Callable[[], Example]] = {}

WIDTHS: dict[str, Any] = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64}
TEXT: dict[str, Any] = {**WIDTHS, "vocab_size": 99, "max_position_embeddings": 64}
GROUPED: dict[str, Any] = {**TEXT, "num_key_value_heads": 2}
IMAGE: dict[str, Any] = {**WIDTHS, "image_size": 32, "patch_size": 8}
SEQ2SEQ: dict[str, Any] = {
    "d_model": 32, "encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 4, "decoder_attention_heads": 4,
    "encoder_ffn_dim": 64, "decoder_ffn_dim": 64, "vocab_size": 99,
}  # fmt: skip
SPEECH: dict[str, Any] = {
    **WIDTHS, "vocab_size": 32, "conv_dim": (16, 16), "conv_kernel": (10, 3), "conv_stride": (5, 2), "num_feat_extract_layers": 2,
    "num_conv_pos_embeddings": 16, "num_conv_pos_embedding_groups": 2,
}  # fmt: skip


def ids(length: int = 17) -> torch.Tensor:
    return torch.randint(3, 99, (2, length))


def padded(length: int = 17, padding: int = 5) -> torch.Tensor:
    mask = torch.ones(2, length, dtype=torch.long)
    mask[1, length - padding :] = 0
    return mask


def images(size: int = 32, batch: int = 2) -> torch.Tensor:
    return torch.randn(batch, 3, size, size)


def transformer(name: str, model: str, config: str, settings: dict[str, Any], inputs: Callable[[], dict[str, Any]]) -> None:
    def build() -> Example:
        import transformers

        return getattr(transformers, model)(getattr(transformers, config)(**settings)), (), inputs()

    MODELS[name] = build


def encoder() -> dict[str, Any]:
    return {"input_ids": ids(), "attention_mask": padded()}


def decoder() -> dict[str, Any]:
    return {**encoder(), "use_cache": False}


def both() -> dict[str, Any]:
    return {**encoder(), "decoder_input_ids": ids(7), "use_cache": False}


for family, head in [("Roberta", "ForSequenceClassification"), ("MPNet", "ForMaskedLM"), ("RemBert", "ForMaskedLM")]:
    transformer(family.lower(), family + head, family + "Config", TEXT, encoder)
transformer("electra", "ElectraForMaskedLM", "ElectraConfig", {**TEXT, "embedding_size": 16}, encoder)
transformer("albert", "AlbertForMaskedLM", "AlbertConfig", {**TEXT, "embedding_size": 16}, encoder)
transformer(
    "modernbert", "ModernBertForMaskedLM", "ModernBertConfig",
    {**TEXT, "local_attention": 8, "global_attn_every_n_layers": 2, "pad_token_id": 0}, encoder,
)  # fmt: skip
transformer(
    "deberta_v2", "DebertaV2ForTokenClassification", "DebertaV2Config",
    {**TEXT, "relative_attention": True, "pos_att_type": ["c2p", "p2c"], "position_buckets": 8, "conv_kernel_size": 3}, encoder,
)  # fmt: skip
transformer(
    "funnel", "FunnelModel", "FunnelConfig",
    {"d_model": 32, "block_sizes": [1, 1], "n_head": 4, "d_head": 8, "d_inner": 64, "vocab_size": 99},
    lambda: {"input_ids": ids(16), "attention_mask": padded(16)},
)  # fmt: skip
transformer("fnet", "FNetModel", "FNetConfig", {k: v for k, v in TEXT.items() if "heads" not in k}, lambda: {"input_ids": ids()})
transformer(
    "longformer", "LongformerModel", "LongformerConfig", {**TEXT, "max_position_embeddings": 128, "attention_window": 8},
    lambda: {"input_ids": ids(32), "attention_mask": padded(32)},
)  # fmt: skip

for family, settings in [
    ("Llama", GROUPED), ("Mistral", {**GROUPED, "sliding_window": 6}), ("Qwen2", GROUPED), ("Qwen3", {**GROUPED, "head_dim": 8}),
    ("Gemma2", {**GROUPED, "head_dim": 8, "sliding_window": 6, "query_pre_attn_scalar": 8}), ("Phi", TEXT), ("Olmo2", GROUPED),
    ("Cohere", GROUPED), ("StableLm", GROUPED), ("GPTNeoX", TEXT),
    ("Mixtral", {**GROUPED, "num_local_experts": 4, "num_experts_per_tok": 2}),
    ("Olmoe", {**GROUPED, "num_experts": 4, "num_experts_per_tok": 2}),
    ("GptOss", {**GROUPED, "num_local_experts": 4, "num_experts_per_tok": 2, "head_dim": 8, "sliding_window": 6}),
    ("DeepseekV3", {
        **TEXT, "num_key_value_heads": 4, "n_routed_experts": 4, "num_experts_per_tok": 2, "n_group": 2, "topk_group": 1,
        "moe_intermediate_size": 32, "kv_lora_rank": 8, "q_lora_rank": 8, "qk_rope_head_dim": 4, "qk_nope_head_dim": 4, "v_head_dim": 8,
        "first_k_dense_replace": 1,
    }),
]:  # fmt: skip
    transformer(family.lower(), family + "ForCausalLM", family + "Config", settings, decoder)
transformer("gpt2", "GPT2LMHeadModel", "GPT2Config", {"n_embd": 32, "n_layer": 2, "n_head": 4, "vocab_size": 99, "n_positions": 64}, decoder)
transformer("bloom", "BloomForCausalLM", "BloomConfig", {"hidden_size": 32, "n_layer": 2, "n_head": 4, "vocab_size": 99}, decoder)
transformer(
    "mamba", "MambaForCausalLM", "MambaConfig", {"hidden_size": 32, "num_hidden_layers": 2, "vocab_size": 99, "state_size": 4},
    lambda: {"input_ids": ids(), "use_cache": False},
)  # fmt: skip

transformer(
    "t5", "T5ForConditionalGeneration", "T5Config",
    {"d_model": 32, "d_kv": 8, "d_ff": 64, "num_layers": 2, "num_heads": 4, "vocab_size": 99, "decoder_start_token_id": 0}, both,
)  # fmt: skip
transformer("bart", "BartForConditionalGeneration", "BartConfig", {**SEQ2SEQ, "max_position_embeddings": 64}, both)
transformer(
    "marian", "MarianMTModel", "MarianConfig",
    {**SEQ2SEQ, "max_position_embeddings": 64, "pad_token_id": 0, "decoder_start_token_id": 0}, both,
)  # fmt: skip

transformer("beit", "BeitModel", "BeitConfig", {**IMAGE, "use_relative_position_bias": True}, lambda: {"pixel_values": images()})
transformer(
    "swin_v2", "Swinv2Model", "Swinv2Config",
    {"image_size": 32, "patch_size": 4, "embed_dim": 16, "depths": [2, 2], "num_heads": [2, 4], "window_size": 4},
    lambda: {"pixel_values": images()},
)  # fmt: skip
transformer("dinov2", "Dinov2Model", "Dinov2Config", {**IMAGE, "image_size": 56}, lambda: {"pixel_values": torch.randn(2, 3, 48, 40)})
transformer(
    "clip", "CLIPModel", "CLIPConfig", {"text_config": TEXT, "vision_config": IMAGE, "projection_dim": 16},
    lambda: {**encoder(), "pixel_values": images()},
)  # fmt: skip
transformer(
    "sam_vision", "SamVisionModel", "SamVisionConfig",
    {
        **{k: v for k, v in IMAGE.items() if k != "intermediate_size"}, "image_size": 64, "output_channels": 16, "window_size": 3,
        "global_attn_indexes": [1], "mlp_dim": 64,
    }, lambda: {"pixel_values": images(64, 1)},
)  # fmt: skip

transformer("wav2vec2", "Wav2Vec2ForCTC", "Wav2Vec2Config", SPEECH, lambda: {"input_values": torch.randn(1, 1600)})
transformer("hubert", "HubertModel", "HubertConfig", SPEECH, lambda: {"input_values": torch.randn(1, 1600)})
transformer(
    "whisper", "WhisperForConditionalGeneration", "WhisperConfig",
    {
        **SEQ2SEQ, "max_source_positions": 30, "max_target_positions": 20, "num_mel_bins": 16, "pad_token_id": 0, "bos_token_id": 1,
        "eos_token_id": 2, "decoder_start_token_id": 1,
    }, lambda: {"input_features": torch.randn(2, 16, 60), "decoder_input_ids": ids(7), "use_cache": False},
)  # fmt: skip
transformer(
    "audio_spectrogram", "ASTModel", "ASTConfig",
    {**WIDTHS, "patch_size": 8, "max_length": 40, "num_mel_bins": 24, "frequency_stride": 6, "time_stride": 6},
    lambda: {"input_values": torch.randn(2, 40, 24)},
)  # fmt: skip


def torchvision(name: str, size: int = 64) -> None:
    def build() -> Example:
        from torchvision import models

        return getattr(models, name)(weights=None, num_classes=10), (images(size),), {}

    MODELS["tv_" + name] = build


for vision in [
    "mobilenet_v2", "mobilenet_v3_small", "efficientnet_b0", "convnext_tiny", "swin_t", "densenet121", "regnet_y_400mf",
    "shufflenet_v2_x0_5", "squeezenet1_1",
]:  # fmt: skip
    torchvision(vision)


def timm(name: str, size: int = 64, **settings: Any) -> None:
    def build() -> Example:
        import timm as library

        return library.create_model(name, pretrained=False, num_classes=10, **settings), (images(size),), {}

    MODELS["timm_" + name] = build


for vision in ["resnet26d", "ghostnet_100", "repvgg_a0", "edgenext_xx_small", "mobilevit_xxs", "nf_resnet26", "fastvit_t8", "starnet_s1"]:
    timm(vision)
timm("xcit_nano_12_p16_224", img_size=64, depth=2)
timm("gmlp_ti16_224", img_size=64)
