"""How many KV pages fit."""

from __future__ import annotations

import pytest

from engine.random_models import SPECS
from twinpath.engine.reference_memory import (
    ReferenceOptions,
    default_num_pages,
    describe_memory,
    num_pages_that_fit,
    page_bytes,
)


def test_a_page_holds_keys_and_values_of_every_layer() -> None:
    # qwen3: 3 layers x (k + v) x 2 heads x 32 values x 16 tokens x 2 bytes.
    assert page_bytes(SPECS["qwen3"], ReferenceOptions(page_size=16, dtype="bfloat16")) == 3 * 2 * 2 * 32 * 16 * 2


def test_pages_fill_the_allowed_share_less_what_is_taken_and_reserved() -> None:
    # 100 in all, 30 of them taken, 90 % allowed, 10 reserved: 50 are left.
    assert num_pages_that_fit(free_bytes=70, total_bytes=100, reserve_bytes=10, bytes_per_page=8, utilization=0.9) == 6


def test_no_page_fits_a_full_device() -> None:
    assert num_pages_that_fit(free_bytes=5, total_bytes=100, reserve_bytes=0, bytes_per_page=1, utilization=0.9) == 0


@pytest.mark.parametrize(("max_model_len", "num_tokens"), [(160, 16_384), (20_000, 20_000)])
def test_the_pool_on_a_cpu_holds_16k_tokens_or_the_window(max_model_len: int, num_tokens: int) -> None:
    options = ReferenceOptions(page_size=32)
    assert default_num_pages(SPECS["llama"], options, max_model_len) == num_tokens // 32


def test_the_start_table_names_the_pool() -> None:
    facts = describe_memory(SPECS["qwen3"], ReferenceOptions(page_size=16), num_pages=100)
    assert facts["device"] == "cpu"
    assert facts["dtype"] == "float32"
    # 3 layers x (k + v) x 2 heads x 32 values x 1600 tokens x 4 bytes.
    assert facts["KV memory"] == "2 MB, touched as used"
