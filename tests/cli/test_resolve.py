"""Values become one frozen configuration, or one clear line."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from twinpath.cli.resolve import choose_model, resolve, served_name, spin_s, unread_settings
from twinpath.cli.settings import SETTINGS
from twinpath.config import EngineConfig, HttpConfig, SchedulerConfig, ServeConfig
from twinpath.errors import UserError


def values(**changed: Any) -> dict[str, Any]:
    return {setting.name: setting.default_value() for setting in SETTINGS} | changed


def test_defaults_are_those_of_the_config() -> None:
    assert resolve("smollm2-135m", values()) == ServeConfig(
        model="smollm2-135m",
        served_model_name="smollm2-135m",
        engine=EngineConfig(model_path=Path("smollm2-135m")),
        http=HttpConfig(),
        scheduler=SchedulerConfig(),
    )


def test_settings_without_effect_depend_on_the_engine() -> None:
    cuda_only = {"gpu_memory_utilization", "batch_invariant", "tensor_parallel_size"}
    assert unread_settings(resolve("m", values()).engine) == {"dtype"} | cuda_only
    assert unread_settings(resolve("m", values(device="cuda")).engine) == {"threads", "isa", "activation_bits"}


def test_keys_may_be_repeated_or_joined_by_commas() -> None:
    assert resolve("m", values(api_key=["a, b", "c"])).http.api_keys == ("a", "b", "c")


def test_dtype_synonyms() -> None:
    assert resolve("m", values(dtype="half")).engine.dtype == "float16"


def test_cuda_has_a_fast_engine_and_its_twin() -> None:
    assert resolve("m", values(device="cuda")).engine.kind == "native"
    assert resolve("m", values(device="cuda", engine="reference")).engine.kind == "reference"


def test_only_a_gpu_with_cores_to_spare_is_spun_for() -> None:
    gpu = resolve("m", values(device="cuda")).engine
    assert (spin_s(gpu, 16), spin_s(gpu, 4)) == (1.0, 0.0)
    assert spin_s(resolve("m", values()).engine, 16) == 0.0
    assert spin_s(resolve("scripted:///tmp/script.json", values()).engine, 16) == 0.0
    assert spin_s(resolve("m", values(spin=0.25)).engine, 1) == 0.25


def test_scripted_model_needs_no_engine_choice() -> None:
    engine = resolve("scripted:///tmp/script.json", values()).engine
    assert (engine.kind, engine.model_path) == ("scripted", Path("/tmp/script.json"))


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"port": 70_000}, "--port 70000: must be between 0 and 65535"),
        ({"threads": 0}, "--threads 0: must be between 1 and 1024"),
        ({"activation_bits": 7}, "--activation-bits 7: must be one of 8, 16"),
        ({"gpu_memory_utilization": float("nan")}, "--gpu-memory-utilization nan: must be between"),
        ({"api_key": [""]}, "--api-key: the value is empty"),
        ({"api_key": [" , ", ""]}, "--api-key: the value is empty"),
        ({"max_model_len": 1}, "--max-model-len 1: must be between 2 and"),
        ({"chat_template": "a\0b"}, "is no text file"),
        ({"chat_template": "/nowhere/template.jinja"}, "--chat-template /nowhere/template.jinja: No such file"),
    ],
)
def test_wrong_value_is_one_line(changed: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError) as raised:
        resolve("m", values(**changed))
    assert message in str(raised.value) and "\n" not in str(raised.value)


def test_missing_torch_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(UserError, match=r"--device cuda needs torch: pip install 'torch>=2.11,<2.14'"):
        resolve("m", values(device="cuda"))


def test_template_may_be_text_or_file(tmp_path: Path) -> None:
    path = tmp_path / "template.jinja"
    path.write_text("{{ messages }}")
    assert resolve("m", values(chat_template=str(path))).chat_template == "{{ messages }}"
    assert resolve("m", values(chat_template="{% if x %}{% endif %}")).chat_template == "{% if x %}{% endif %}"


def test_two_different_models_are_refused() -> None:
    assert choose_model("a", "a", "d") == "a"
    assert choose_model(None, None, "d") == "d"
    with pytest.raises(UserError, match="two models given"):
        choose_model("a", "b", "d")


def test_served_name(tmp_path: Path) -> None:
    gguf = tmp_path / "Tiny-Q4.gguf"
    gguf.touch()
    assert served_name("smollm2-135m") == "smollm2-135m"
    assert served_name("hf://org/name@main") == "org/name"
    assert served_name(str(gguf)) == "Tiny-Q4"
    assert served_name(str(tmp_path)) == tmp_path.name


def test_only_the_cuda_engine_shares_a_model() -> None:
    assert resolve("m", values(device="cuda", tensor_parallel_size=2)).engine.tensor_parallel_size == 2
    for other in ({}, {"device": "cuda", "engine": "reference"}):
        with pytest.raises(UserError, match="--tensor-parallel-size: only --device cuda shares a model"):
            resolve("m", values(tensor_parallel_size=2, **other))
