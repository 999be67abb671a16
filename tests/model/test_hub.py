"""`hf://` against a hub on loopback, in processes of their own: the library reads HF_ENDPOINT when it is imported."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from huggingface_hub import errors

from fixtures.file_server import Answer, FileServer, file_server
from twinpath.errors import SourceError
from twinpath.model import hub
from twinpath.model.hub import HubModel

COMMIT = "c0ffee" * 6 + "abcd"
REPO = "org/tiny"
CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 16,
    "intermediate_size": 24,
    "max_position_embeddings": 64,
    "num_attention_heads": 4,
    "num_hidden_layers": 1,
    "vocab_size": 600,
}
WEIGHTS = bytes(range(256)) * 2000
FILES = {
    "config.json": json.dumps(CONFIG).encode(),
    "tokenizer.json": b"{}",
    "tokenizer_config.json": b"{}",
    "model.safetensors": WEIGHTS,
    "pytorch_model.bin": b"never fetched",
    "consolidated.safetensors": b"never fetched",
    "README.md": b"never fetched",
}
#: Resolves what it reads, line by line; every report and every answer is a line of JSON.
WORKER = """
import json, sys
from pathlib import Path
from twinpath.errors import UserError
from twinpath.model.source import resolve
for line in sys.stdin:
    source, cache, refresh = json.loads(line)
    try:
        report = lambda *told: print(json.dumps(told), flush=True)
        files = resolve(source, Path(cache), report, refresh=refresh)
        print(json.dumps({"path": str(files.path), "format": files.format}), flush=True)
    except UserError as error:
        print(json.dumps({"error": str(error)}), flush=True)
"""


class Worker:
    """A process with HF_ENDPOINT set to a hub of ours."""

    def __init__(self, endpoint: str, home: Path) -> None:
        ours = {"HF_ENDPOINT": endpoint, "HF_HOME": str(home), "HF_HUB_ETAG_TIMEOUT": "5"}
        without = {"HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "HF_TOKEN", "HF_HUB_OFFLINE"}
        env = {name: value for name, value in os.environ.items() if name.upper() not in without} | ours
        pipe = subprocess.PIPE
        self.process = subprocess.Popen([sys.executable, "-c", WORKER], env=env, stdin=pipe, stdout=pipe, text=True)

    def ask(self, source: str, cache: Path, refresh: bool = False) -> Iterator[Any]:
        """Reports as lists, then the answer as an object."""
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.write(json.dumps([source, str(cache), refresh]) + "\n")
        self.process.stdin.flush()
        for line in self.process.stdout:
            told = json.loads(line)
            yield told
            if isinstance(told, dict):
                return
        raise AssertionError("the process ended")

    def kill(self) -> None:
        self.process.kill()
        self.process.communicate()


@dataclass
class FakeHub:
    server: FileServer
    worker: Worker
    cache: Path

    def put(self, files: dict[str, bytes], commit: str = COMMIT, revision: str = "main") -> None:
        siblings = []
        for name, content in files.items():
            sha1 = hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()
            sibling: dict[str, Any] = {"rfilename": name, "size": len(content), "blobId": sha1}
            etag = sha1
            if name.endswith((".safetensors", ".gguf", ".bin")):
                etag = hashlib.sha256(content).hexdigest()
                sibling["lfs"] = {"sha256": etag, "size": len(content), "pointerSize": 130}
            siblings.append(sibling)
            headers = {"ETag": f'"{etag}"', "X-Repo-Commit": commit, "Accept-Ranges": "bytes"}
            self.server.answers[f"/{REPO}/resolve/{commit}/{name}"] = Answer(content, headers=headers)
        info = {"id": REPO, "modelId": REPO, "sha": commit, "siblings": siblings, "tags": [], "private": False}
        self.server.answers[f"/api/models/{REPO}/revision/{revision}"] = Answer(json.dumps(info).encode())

    def answer(self, name: str, commit: str = COMMIT) -> Answer:
        return self.server.answers[f"/{REPO}/resolve/{commit}/{name}"]

    def fetched(self) -> list[str]:
        paths = dict.fromkeys(path for method, path, _ in self.server.seen if method == "GET" and "/resolve/" in path)
        return [path.split(f"/resolve/{COMMIT}/")[1] for path in paths]

    def resolve(self, source: str = f"hf://{REPO}", *, refresh: bool = False) -> dict[str, Any]:
        """The answer, with the progress reports before it."""
        *reports, answer = self.worker.ask(source, self.cache, refresh)
        return {**answer, "reports": reports}

    def error(self, source: str = f"hf://{REPO}") -> str:
        message: str = self.resolve(source)["error"]
        assert message.startswith(source) and "\n" not in message
        return message


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[FileServer, Worker]]:
    with file_server() as server:
        worker = Worker(server.url, tmp_path_factory.mktemp("hf"))
        yield server, worker
        worker.kill()


@pytest.fixture
def fake(shared: tuple[FileServer, Worker], tmp_path: Path) -> FakeHub:
    server, worker = shared
    server.answers.clear()
    server.seen.clear()
    return FakeHub(server, worker, tmp_path / "cache")


def test_fetches_what_serving_needs_and_nothing_else(fake: FakeHub) -> None:
    fake.put(FILES)
    answer = fake.resolve()
    path = Path(answer["path"])
    needed = ["config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"]
    assert sorted(fake.fetched()) == needed
    assert sorted(p.name for p in path.iterdir()) == sorted([*needed, "origin.json"])
    assert all((path / name).read_bytes() == FILES[name] for name in needed)
    assert answer["format"] == "safetensors"
    assert answer["reports"][-1] == [len(WEIGHTS), len(WEIGHTS), "model.safetensors"]

    # Again without a hub: what is fetched is used as it is.
    fake.server.answers.clear()
    fake.server.seen.clear()
    assert fake.resolve()["path"] == str(path)
    assert fake.server.seen == []


def test_shards_and_refresh(fake: FakeHub) -> None:
    names = ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"]
    index = json.dumps({"weight_map": {"a": names[0], "b": names[1]}}).encode()
    files = {name: FILES[name] for name in ("config.json", "tokenizer.json")}
    files |= {"model.safetensors.index.json": index, names[0]: b"first", names[1]: b"second"}
    fake.put(files | {"model-00003-of-00002.safetensors": b"never fetched"})
    path = Path(fake.resolve()["path"])
    assert [(path / name).read_bytes() for name in names] == [b"first", b"second"]
    assert not (path / "model-00003-of-00002.safetensors").exists()

    newer = "beef" * 10
    fake.put(files | {names[0]: b"newer"}, commit=newer)
    assert (Path(fake.resolve()["path"]) / names[0]).read_bytes() == b"first"
    fake.server.seen.clear()
    path = Path(fake.resolve(refresh=True)["path"])
    assert [(path / name).read_bytes() for name in names] == [b"newer", b"second"]
    # Only what changed moved; and nothing does when nothing changed.
    assert [seen for method, seen, _ in fake.server.seen if method == "GET" and "/resolve/" in seen] == [
        f"/{REPO}/resolve/{newer}/{names[0]}"
    ]
    fake.server.seen.clear()
    assert fake.resolve(refresh=True)["path"] == str(path)
    assert not [seen for _, seen, _ in fake.server.seen if "/resolve/" in seen]


#: The library writes in pieces of 10 MiB; what came of an unfinished piece is lost.
PIECE = 10 * 1024 * 1024
LARGE = bytes(range(256)) * 45_000


def resumed_at(fake: FakeHub) -> list[str | None]:
    return fake.server.ranges_of(f"/{REPO}/resolve/{COMMIT}/model.safetensors")


def test_goes_on_where_it_broke_off(fake: FakeHub) -> None:
    fake.put(FILES | {"model.safetensors": LARGE})
    answer = fake.answer("model.safetensors")
    answer.breaks, answer.break_after_bytes = 1, PIECE + 1000
    path = Path(fake.resolve()["path"])
    assert (path / "model.safetensors").read_bytes() == LARGE
    assert resumed_at(fake) == [None, f"bytes={PIECE}-"]


def test_a_killed_download_is_resumed_by_the_next_process(fake: FakeHub, tmp_path: Path) -> None:
    fake.put(FILES | {"model.safetensors": LARGE})
    answer = fake.answer("model.safetensors")
    answer.breaks, answer.break_after_bytes, answer.hold = 1, PIECE + 1000, threading.Event()
    doomed = Worker(fake.server.url, tmp_path)
    reports = doomed.ask(f"hf://{REPO}", fake.cache)
    grown = next(told for told in reports if told[0] >= PIECE)
    doomed.kill()
    answer.hold.set()
    assert grown[1:] == [len(LARGE), "model.safetensors"]
    assert not list(fake.cache.rglob("origin.json"))

    path = Path(fake.resolve()["path"])
    assert (path / "model.safetensors").read_bytes() == LARGE
    assert resumed_at(fake) == [None, f"bytes={PIECE}-"]
    # The small files came the first time.
    assert fake.server.ranges_of(f"/{REPO}/resolve/{COMMIT}/config.json") == [None]


def test_damaged_weights_are_refused_and_fetched_anew(fake: FakeHub) -> None:
    fake.put(FILES)
    fake.answer("model.safetensors").body = WEIGHTS[:-1] + b"!"
    assert "model.safetensors came damaged" in fake.error()
    assert not list(fake.cache.rglob("origin.json"))
    fake.answer("model.safetensors").body = WEIGHTS
    assert (Path(fake.resolve()["path"]) / "model.safetensors").read_bytes() == WEIGHTS


def test_damaged_small_files_are_refused(fake: FakeHub) -> None:
    fake.put(FILES)
    fake.answer("tokenizer.json").body = b"[]"
    assert "tokenizer.json came damaged" in fake.error()


def refuse(fake: FakeHub, status: int, code: str, revision: str = "main") -> None:
    answer = Answer(b"{}", status=status, headers={"X-Error-Code": code, "X-Error-Message": "no"})
    fake.server.answers[f"/api/models/{REPO}/revision/{revision}"] = answer


def test_gated(fake: FakeHub) -> None:
    refuse(fake, 401, "GatedRepo")
    message = fake.error()
    assert "gated" in message and "HF_TOKEN" in message and "https://huggingface.co/org/tiny" in message


@pytest.mark.parametrize("status", [401, 404])
def test_no_such_repository(fake: FakeHub, status: int) -> None:
    refuse(fake, status, "RepoNotFound")
    assert "no such repository" in fake.error()


def test_revisions(fake: FakeHub) -> None:
    fake.put(FILES, revision="v1.0")
    assert fake.resolve(f"hf://{REPO}@v1.0")["format"] == "safetensors"
    refuse(fake, 404, "RevisionNotFound", "v2")
    assert "the repository has no revision 'v2'" in fake.error(f"hf://{REPO}@v2")


def test_files_that_cannot_be_asked_for() -> None:
    with (
        pytest.raises(SourceError, match=r"hf://org/tiny: the hub cannot be reached \(503\)"),
        hub._one_line_errors(hub.parse("hf://org/tiny")),
    ):
        raise errors.LocalEntryNotFoundError("not in the cache") from OSError("503")


def test_hub_that_fails(fake: FakeHub) -> None:
    refuse(fake, 500, "")
    assert "the hub answers 500" in fake.error()


def test_hub_that_is_away(tmp_path: Path) -> None:
    with file_server() as gone:
        pass
    worker = Worker(gone.url, tmp_path / "hf")
    *_, answer = worker.ask(f"hf://{REPO}", tmp_path / "cache")
    worker.kill()
    assert "hf://org/tiny: the hub cannot be reached" in answer["error"]


def test_an_unsupported_model_is_refused_before_its_weights(fake: FakeHub) -> None:
    fake.put(FILES | {"config.json": json.dumps(CONFIG | {"model_type": "mamba"}).encode()})
    assert "model_type 'mamba' is not supported" in fake.resolve()["error"]
    assert "model.safetensors" not in fake.fetched()


def test_gguf_repositories(fake: FakeHub) -> None:
    fake.put({"config.json": b"{}", "q4.gguf": b"four", "sub/q8.gguf": b"eight"})
    assert "name one GGUF file" in fake.error()
    assert "the repository has no q5.gguf; it has q4.gguf, sub/q8.gguf" in fake.error(f"hf://{REPO}/q5.gguf")
    answer = fake.resolve(f"hf://{REPO}/sub/q8.gguf")
    assert answer["format"] == "gguf" and Path(answer["path"]).read_bytes() == b"eight"
    assert fake.fetched() == ["sub/q8.gguf"]


def test_a_repository_without_a_model(fake: FakeHub) -> None:
    fake.put({"README.md": b"x", "pytorch_model.bin": b"x"})
    assert "neither config.json with safetensors nor a GGUF file" in fake.error()


def test_names() -> None:
    assert hub.parse("hf://org/name") == HubModel("hf://org/name", "org/name", "main")
    assert hub.parse("hf://o/n-1.5@refs/pr/1").revision == "refs/pr/1"
    full = hub.parse("hf://o/n@v1/sub/x.Q4_K.gguf")
    assert (full.revision, full.file) == ("v1", "sub/x.Q4_K.gguf")
    for wrong in ("hf://name", "hf://a/b/c", "hf://a/b@", "hf://a/../b", "hf://a b/c", "hf:///a/b"):
        with pytest.raises(SourceError, match="expected hf://org/name"):
            hub.parse(wrong)
