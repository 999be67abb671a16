"""Shapes of the models that the GPU benchmarks and tests run with random weights, as their `config.json` state them."""

from __future__ import annotations

from dataclasses import replace

from twinpath.model.spec import ModelSpec, RopeSpec

_LLAMA_ROPE = RopeSpec(
    theta=500_000.0,
    scaling="llama3",
    factor=8.0,
    original_max_positions=8192,
    low_freq_factor=1.0,
    high_freq_factor=4.0,
)

LLAMA_8B = ModelSpec(
    family="llama",
    num_layers=32,
    hidden_size=4096,
    intermediate_size=14_336,
    num_heads=32,
    num_kv_heads=8,
    head_dim=128,
    vocab_size=128_256,
    max_position=131_072,
    norm_eps=1e-5,
    tied_embeddings=False,
    activation="silu",
    qkv_bias=False,
    o_bias=False,
    qk_norm=False,
    sandwich_norms=False,
    embed_scale=1.0,
    attn_scale=128**-0.5,
    ropes=(_LLAMA_ROPE,),
    layer_rope=(0,) * 32,
    layer_window=(None,) * 32,
)


def with_layers(spec: ModelSpec, num_layers: int) -> ModelSpec:
    """The same model with another number of layers; the pattern of windows and rotations goes on."""

    def repeated(values: tuple[int, ...] | tuple[int | None, ...]) -> tuple[int | None, ...]:
        return tuple(values[i % len(values)] for i in range(num_layers))

    ropes = tuple(i or 0 for i in repeated(spec.layer_rope))
    return replace(spec, num_layers=num_layers, layer_rope=ropes, layer_window=repeated(spec.layer_window))


LLAMA_1B = replace(
    with_layers(LLAMA_8B, 16),
    hidden_size=2048,
    intermediate_size=8192,
    head_dim=64,
    tied_embeddings=True,
    attn_scale=64**-0.5,
    ropes=(replace(_LLAMA_ROPE, factor=32.0),),
)
QWEN3_8B = replace(
    with_layers(LLAMA_8B, 36),
    family="qwen3",
    intermediate_size=12_288,
    vocab_size=151_936,
    max_position=40_960,
    norm_eps=1e-6,
    qk_norm=True,
    ropes=(RopeSpec(theta=1_000_000.0),),
)
QWEN25_7B = replace(
    with_layers(LLAMA_8B, 28),
    family="qwen2",
    hidden_size=3584,
    intermediate_size=18_944,
    num_heads=28,
    num_kv_heads=4,
    vocab_size=152_064,
    max_position=32_768,
    norm_eps=1e-6,
    qkv_bias=True,
    ropes=(RopeSpec(theta=1_000_000.0),),
)
SMOLLM2_135M = replace(
    with_layers(LLAMA_8B, 30),
    hidden_size=576,
    intermediate_size=1536,
    num_heads=9,
    num_kv_heads=3,
    head_dim=64,
    vocab_size=49_152,
    max_position=8192,
    tied_embeddings=True,
    attn_scale=64**-0.5,
    ropes=(RopeSpec(theta=100_000.0),),
)
#: Five windows of 512 tokens, then one layer that sees all, with rotations of its own.
GEMMA3_1B = ModelSpec(
    family="gemma3",
    num_layers=26,
    hidden_size=1152,
    intermediate_size=6912,
    num_heads=4,
    num_kv_heads=1,
    head_dim=256,
    vocab_size=262_144,
    max_position=32_768,
    norm_eps=1e-6,
    tied_embeddings=True,
    activation="gelu_tanh",
    qkv_bias=False,
    o_bias=False,
    qk_norm=True,
    sandwich_norms=True,
    embed_scale=34.0,
    attn_scale=256**-0.5,
    ropes=(RopeSpec(theta=10_000.0), RopeSpec(theta=1_000_000.0)),
    layer_rope=tuple(1 if i % 6 == 5 else 0 for i in range(26)),
    layer_window=tuple(None if i % 6 == 5 else 512 for i in range(26)),
)

GPU_MODELS = {
    "llama-3.1-8b": LLAMA_8B,
    "llama-3.2-1b": LLAMA_1B,
    "qwen3-8b": QWEN3_8B,
    "qwen2.5-7b": QWEN25_7B,
    "smollm2-135m": SMOLLM2_135M,
    "gemma-3-1b": GEMMA3_1B,
}
