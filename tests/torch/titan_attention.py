"""Attention for torchtitan on CPUs, which `titan.py` names as an override: torch's flex_attention has no backward there."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch.nn.attention.flex_attention import create_mask
from torchtitan.config import derive, override  # type: ignore[import-not-found]
from torchtitan.models.common.attention import FlexAttention  # type: ignore[import-not-found]


class DenseAttention(FlexAttention):  # type: ignore[misc]
    """The same attention, with the mask of each block written out."""

    @dataclass(kw_only=True, slots=True)
    class Config(FlexAttention.Config):  # type: ignore[misc]
        pass

    def forward(
        self,
        q_BLNH: torch.Tensor,
        k_BLNH: torch.Tensor,
        v_BLNH: torch.Tensor,
        *,
        attention_masks: Any,
        scale: float | None = None,
        enable_gqa: bool = False,
        **_: Any,
    ) -> torch.Tensor:
        q, k, v = (x.transpose(1, 2) for x in (q_BLNH, k_BLNH, v_BLNH))
        mask = create_mask(attention_masks.mask_mod, q.shape[0], None, q.shape[2], k.shape[2], device="cpu")
        attention = torch.nn.functional.scaled_dot_product_attention
        return attention(q, k, v, attn_mask=mask, scale=scale, enable_gqa=enable_gqa).transpose(1, 2)


@override(target=FlexAttention.Config, description="attention with a backward on CPUs", exact=True)  # type: ignore[untyped-decorator]
def on_cpus(config: Any) -> Any:
    return derive(config, DenseAttention.Config)
