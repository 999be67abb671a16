"""From settings to a reference engine: dtype, pages, limits, progress, and one clear line when it cannot be."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from engine.random_models import SPECS, random_weights
from engine.step_driver import Driver
from parity import tiny_models
from twinpath.config import EngineConfig, SchedulerConfig
from twinpath.engine.reference_load import choose_dtype, open_reference
from twinpath.errors import ModelLoadError, UserError
from twinpath.model.tensors import WeightType


@pytest.fixture(scope="module")
def model_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory: Path = tmp_path_factory.mktemp("model")
    tiny_models.save("llama3", directory)
    return directory


def info_of(model_path: Path, scheduler: dict[str, Any] | None = None, **settings: Any) -> Any:
    engine = open_reference(
        EngineConfig(model_path, kind="reference", **settings), SchedulerConfig(**(scheduler or {})), lambda *_: None
    )
    engine.close()
    return engine.info


def test_the_defaults_on_a_cpu(model_path: Path) -> None:
    info = info_of(model_path)
    assert (info.device, info.depth, info.max_slots, info.page_size) == ("cpu", 1, 64, 16)
    assert info.max_model_len == 128
    assert info.max_step_tokens == 128
    assert info.num_pages * info.page_size == 16_384
    assert "float32" in info.description


def test_a_pool_size_in_megabytes(model_path: Path) -> None:
    # 3 layers x (k + v) x 2 heads x 16 values x 4 bytes x 16 tokens = 12,288 bytes a page.
    assert info_of(model_path, kv_cache_mb=1).num_pages == 2**20 // 12_288


def test_without_chunked_prefill_a_step_holds_the_whole_window(model_path: Path) -> None:
    scheduler = {"enable_chunked_prefill": False, "max_num_batched_tokens": 70}
    assert info_of(model_path, scheduler, max_model_len=100).max_step_tokens == 100


def test_the_step_size_asked_for(model_path: Path) -> None:
    assert info_of(model_path, {"max_num_batched_tokens": 70, "max_num_seqs": 9}).max_step_tokens == 70


def test_loading_reports_every_tensor(model_path: Path) -> None:
    seen: list[tuple[int, int]] = []
    config = EngineConfig(model_path, kind="reference")
    engine = open_reference(config, SchedulerConfig(), lambda done, total, what: seen.append((done, total)))
    engine.close()
    # 9 matrices and norms a layer, embedding, final norm and head.
    assert seen == [(n + 1, 30) for n in range(30)]


def test_a_sixteen_bit_model_generates(model_path: Path) -> None:
    config = EngineConfig(model_path, kind="reference", dtype="bfloat16")
    engine = open_reference(config, SchedulerConfig(), lambda *_: None)
    driver = Driver(engine)
    assert len(driver.generate(driver.sequence(0, [5, 6, 7]), 4)) == 4
    engine.close()


@pytest.mark.parametrize(
    ("device", "asked", "stored", "chosen"),
    [
        ("cpu", "auto", WeightType.BF16, "float32"),
        ("cpu", "bfloat16", WeightType.F32, "bfloat16"),
        ("cuda", "auto", WeightType.BF16, "bfloat16"),
        ("cuda", "auto", WeightType.F16, "float16"),
        ("cuda", "auto", WeightType.F32, "bfloat16"),
        ("cuda", "float32", WeightType.BF16, "float32"),
    ],
)
def test_dtypes(device: Any, asked: Any, stored: WeightType, chosen: str) -> None:
    config = EngineConfig(Path("unused"), device=device, dtype=asked)
    weights = random_weights(SPECS["llama"], weight_type=stored, quantize=lambda values, _: values)
    assert choose_dtype(config, weights) == chosen


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"max_model_len": 129}, "max_model_len 129 is beyond the model's window of 128"),
        ({"kv_cache_mb": 0}, "kv_cache_mb 0 holds no page of 16 tokens"),
    ],
)
def test_settings_that_cannot_be(model_path: Path, settings: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        info_of(model_path, **settings)


def test_cuda_without_a_device(model_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(UserError, match="no CUDA device"):
        info_of(model_path, device="cuda")


def test_a_missing_model(tmp_path: Path) -> None:
    with pytest.raises(ModelLoadError, match="no such file"):
        info_of(tmp_path / "absent")
