"""What each canonical tensor is called in GGUF and in safetensors, and which shape a spec demands of it."""

from __future__ import annotations

from collections.abc import Mapping

from twinpath.model.spec import ModelSpec

Shape = tuple[int, int]

_GGUF_TOP = {"embed": "token_embd.weight", "final_norm": "output_norm.weight", "lm_head": "output.weight"}
_GGUF_LAYER = {
    "attn_norm": "attn_norm.weight",
    "q": "attn_q.weight",
    "k": "attn_k.weight",
    "v": "attn_v.weight",
    "o": "attn_output.weight",
    "q_bias": "attn_q.bias",
    "k_bias": "attn_k.bias",
    "v_bias": "attn_v.bias",
    "o_bias": "attn_output.bias",
    "q_norm": "attn_q_norm.weight",
    "k_norm": "attn_k_norm.weight",
    "post_attn_norm": "post_attention_norm.weight",
    "mlp_norm": "ffn_norm.weight",
    "gate": "ffn_gate.weight",
    "up": "ffn_up.weight",
    "down": "ffn_down.weight",
    "post_mlp_norm": "post_ffw_norm.weight",
}
_HF_TOP = {"embed": "model.embed_tokens.weight", "final_norm": "model.norm.weight", "lm_head": "lm_head.weight"}
_HF_LAYER = {
    "attn_norm": "input_layernorm.weight",
    "q": "self_attn.q_proj.weight",
    "k": "self_attn.k_proj.weight",
    "v": "self_attn.v_proj.weight",
    "o": "self_attn.o_proj.weight",
    "q_bias": "self_attn.q_proj.bias",
    "k_bias": "self_attn.k_proj.bias",
    "v_bias": "self_attn.v_proj.bias",
    "o_bias": "self_attn.o_proj.bias",
    "q_norm": "self_attn.q_norm.weight",
    "k_norm": "self_attn.k_norm.weight",
    "mlp_norm": "post_attention_layernorm.weight",
    "gate": "mlp.gate_proj.weight",
    "up": "mlp.up_proj.weight",
    "down": "mlp.down_proj.weight",
}
#: Gemma's sandwich: the name that elsewhere precedes the MLP follows attention here.
_HF_SANDWICH = {
    "post_attn_norm": "post_attention_layernorm.weight",
    "mlp_norm": "pre_feedforward_layernorm.weight",
    "post_mlp_norm": "post_feedforward_layernorm.weight",
}


def weight_shapes(spec: ModelSpec) -> dict[str, Shape]:
    """Canonical name -> (rows, cols) of every tensor that `spec` needs, in order of use."""
    shapes: dict[str, Shape] = {"embed": (spec.vocab_size, spec.hidden_size)}
    layer = _layer_shapes(spec)
    for index in range(spec.num_layers):
        shapes.update({f"layers.{index}.{name}": shape for name, shape in layer.items()})
    shapes["final_norm"] = (1, spec.hidden_size)
    if not spec.tied_embeddings:
        shapes["lm_head"] = (spec.vocab_size, spec.hidden_size)
    return shapes


def gguf_name(name: str) -> str:
    return _file_name(name, _GGUF_TOP, _GGUF_LAYER, "blk.")


def hf_name(name: str, spec: ModelSpec) -> str:
    """Without the `language_model` prefix of multimodal checkpoints."""
    layer = {**_HF_LAYER, **_HF_SANDWICH} if spec.sandwich_norms else _HF_LAYER
    return _file_name(name, _HF_TOP, layer, "model.layers.")


def _layer_shapes(spec: ModelSpec) -> dict[str, Shape]:
    hidden, inner = spec.hidden_size, spec.intermediate_size
    q_rows, kv_rows = spec.num_heads * spec.head_dim, spec.num_kv_heads * spec.head_dim
    shapes = {
        "attn_norm": (1, hidden),
        "q": (q_rows, hidden),
        "k": (kv_rows, hidden),
        "v": (kv_rows, hidden),
        "o": (hidden, q_rows),
        "mlp_norm": (1, hidden),
        "gate": (inner, hidden),
        "up": (inner, hidden),
        "down": (hidden, inner),
    }
    if spec.qkv_bias:
        shapes |= {"q_bias": (1, q_rows), "k_bias": (1, kv_rows), "v_bias": (1, kv_rows)}
    if spec.o_bias:
        shapes["o_bias"] = (1, hidden)
    if spec.qk_norm:
        shapes |= {"q_norm": (1, spec.head_dim), "k_norm": (1, spec.head_dim)}
    if spec.sandwich_norms:
        shapes |= {"post_attn_norm": (1, hidden), "post_mlp_norm": (1, hidden)}
    return shapes


def _file_name(name: str, top: Mapping[str, str], layer: Mapping[str, str], prefix: str) -> str:
    if name in top:
        return top[name]
    _, index, part = name.split(".")
    return f"{prefix}{index}.{layer[part]}"
