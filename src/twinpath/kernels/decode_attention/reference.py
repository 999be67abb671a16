"""One decode step's attention in plain torch, float64."""

from __future__ import annotations

import torch


def decode_attention(
    qkv: torch.Tensor,
    gains: tuple[torch.Tensor, torch.Tensor] | None,
    rope: torch.Tensor,
    cache: tuple[torch.Tensor, torch.Tensor],
    table: torch.Tensor,
    position: int,
    first: int,
    *,
    num_heads: int,
    scale: float,
    eps: float,
) -> torch.Tensor:
    """One row, [H, D]: attends positions [first, position]; writes its key and value to the cache.

    Shapes as in `kernel.decode_attention`, for one row: qkv [(H + 2 K) D], table [max_pages].
    """
    k_cache, v_cache = cache
    _, num_kv_heads, page_size, dim = k_cache.shape
    q, k, v = torch.split(qkv.double().view(-1, dim), [num_heads, num_kv_heads, num_kv_heads])
    if gains is not None:
        q, k = (
            x * (x.square().mean(1, keepdim=True) + eps).rsqrt() * gain.double()
            for x, gain in zip((q, k), gains, strict=True)
        )
    q, k = (_rotate(x, rope[position].double()) for x in (q, k))
    page = int(table[position // page_size])
    k_cache[page, :, position % page_size] = k.to(k_cache.dtype)
    v_cache[page, :, position % page_size] = v.to(v_cache.dtype)
    places = torch.arange(first, position + 1, device=table.device)
    pages, offsets = table[places // page_size].long(), places % page_size
    group = num_heads // num_kv_heads
    keys, values = (part[pages, :, offsets].double().repeat_interleave(group, dim=1) for part in cache)
    weights = (torch.einsum("hd,chd->hc", q, keys) * scale).softmax(dim=1)
    return torch.einsum("hc,chd->hd", weights, values)


def _rotate(x: torch.Tensor, cos_sin: torch.Tensor) -> torch.Tensor:
    cos, sin = cos_sin.chunk(2)
    low, high = x.chunk(2, dim=1)
    return torch.cat((low * cos - high * sin, high * cos + low * sin), dim=1)
