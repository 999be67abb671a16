"""What a newcomer does first, with the real model: start, ask, stop, start again."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import openai
import psutil
import pytest

from e2e.served import Served, refused, serving

ROOT = Path(__file__).parents[2]
pytestmark = [pytest.mark.model, pytest.mark.slow]
#: Nothing listens there: a server that needs the network now fails.
NO_NETWORK = {"HTTPS_PROXY": "http://127.0.0.1:9", "HTTP_PROXY": "http://127.0.0.1:9", "NO_PROXY": ""}
QUESTION = [{"role": "user", "content": "What is the capital of France?"}]


@pytest.fixture(scope="module")
def server(default_model_path: Path) -> Iterator[Served]:
    with serving(env=NO_NETWORK) as served:
        yield served


def client_of(server: Served) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{server.url}/v1", api_key="EMPTY", max_retries=0, timeout=60)


def test_the_capital_of_france_streamed_without_any_sampling_field(server: Served) -> None:
    stream = client_of(server).chat.completions.create(model="smollm2-135m", messages=QUESTION, stream=True)
    chunks = list(stream)
    assert "Paris" in "".join(chunk.choices[0].delta.content or "" for chunk in chunks)
    assert [chunk.choices[0].finish_reason for chunk in chunks if chunk.choices[0].finish_reason] == ["stop"]


def test_not_streamed_is_the_same_answer(server: Served) -> None:
    client = client_of(server)
    stream = client.chat.completions.create(model="smollm2-135m", messages=QUESTION, stream=True)
    joined = "".join(chunk.choices[0].delta.content or "" for chunk in stream)
    whole = client.chat.completions.create(model="smollm2-135m", messages=QUESTION)
    assert whole.choices[0].message.content == joined


def test_health_models_and_metrics(server: Served) -> None:
    assert httpx.get(f"{server.url}/health").status_code == 200
    assert httpx.get(f"{server.url}/health/ready").status_code == 200
    [model] = httpx.get(f"{server.url}/v1/models").json()["data"]
    assert model["id"] == "smollm2-135m" and model["max_model_len"] >= 2048
    assert "# TYPE" in httpx.get(f"{server.url}/metrics").text


def test_no_process_loads_torch_or_transformers(server: Served) -> None:
    assert server.url
    processes = server.processes()
    assert len(processes) >= 2
    for process in processes:
        mapped = [region.path for region in process.memory_maps()]
        assert not [path for path in mapped if "/torch/" in path or "/transformers/" in path]


def test_start_table_shows_resolved_settings_and_no_secret(default_model_path: Path) -> None:
    with serving("--api-key", "sesame-open", "--threads", "1", env=NO_NETWORK) as server:
        assert httpx.get(f"{server.url}/v1/models").status_code == 401
        headers = {"Authorization": "Bearer sesame-open"}
        assert httpx.get(f"{server.url}/v1/models", headers=headers).status_code == 200
    assert "max_num_seqs" in server.stderr and re.search(r"threads +1 +flag", server.stderr)
    assert "sesame-open" not in server.stderr


def test_sigterm_leaves_no_process(default_model_path: Path) -> None:
    served = Served("--port", "0", env=NO_NETWORK)
    assert served.url
    family = served.processes()
    served.process.terminate()
    assert served.process.wait(20) == 0
    gone, alive = psutil.wait_procs(family, timeout=10)
    assert not alive and len(gone) == len(family)


def test_port_in_use_is_one_line(server: Served) -> None:
    port = server.url.rsplit(":", 1)[1]
    code, stderr = refused("--port", port, env=NO_NETWORK)
    assert code == 2 and port in stderr and stderr.count("\n") == 0


def test_the_readme_snippet_answers(server: Served) -> None:
    [snippet] = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), flags=re.DOTALL)
    assert "http://127.0.0.1:8000" in snippet
    code = snippet.replace("http://127.0.0.1:8000", server.url)
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert "Paris" in result.stdout, result.stderr
