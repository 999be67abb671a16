"""`hf://org/name[@revision][/file.gguf]`: models from the Hugging Face hub, by huggingface_hub.

The library brings what users expect of it: HF_TOKEN, HF_ENDPOINT, proxies, retries. This file chooses what to fetch
(the weights in one format, the tokeniser, the configs), refuses an unsupported model before its weights are fetched,
and turns the library's many errors into one line each. `hub_transfer` moves the bytes.
"""

from __future__ import annotations

import contextlib
import fnmatch
import json
import os
import re
import shutil
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from twinpath.errors import SourceError
from twinpath.model.files import CONFIG_NAME
from twinpath.model.hf_config import spec_from_config
from twinpath.model.hub_transfer import PART_SUFFIX, RemoteFile, fetch_file
from twinpath.model.safetensors import INDEX_NAME, SINGLE_NAME
from twinpath.model.store import Progress, Store, disk_errors, require_space

if TYPE_CHECKING:
    from huggingface_hub.hf_api import RepoSibling

SCHEME = "hf://"
_FORM = re.compile(r"([\w.-]+/[\w.-]+)(?:@([\w./-]+?))?(?:/([\w./-]+\.gguf))?")
#: Everything but weights, where the repository has it.
_SMALL_FILES = (
    CONFIG_NAME,
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "chat_template.jinja",
    "chat_template.json",
    "special_tokens_map.json",
    INDEX_NAME,
)


@dataclass(frozen=True, slots=True)
class HubModel:
    source: str
    repo: str
    revision: str
    #: A GGUF file inside the repository.
    file: str | None = None


def parse(source: str) -> HubModel:
    """Raises: SourceError when `source` is not of the form above."""
    match = _FORM.fullmatch(source.removeprefix(SCHEME))
    if match is None or ".." in source:
        raise SourceError(f"{source}: expected hf://org/name[@revision][/file.gguf]")
    repo, revision, file = match.groups()
    return HubModel(source, repo, revision or "main", file)


def fetch(model: HubModel, store: Store, progress: Progress, *, refresh: bool = False) -> Path:
    """The model's directory, or its GGUF file.

    Used as it is once fetched; `refresh` asks the hub again. Raises: SourceError.
    """
    found = store.find(model.source)
    if found is not None and not refresh:
        return found
    with (
        disk_errors(store.cache_dir),
        store.locked(model.source, lambda: progress(0, 0, "waiting for another process")),
    ):
        found = store.find(model.source)
        if found is not None and not refresh:
            return found
        with _one_line_errors(model):
            return _fetch(model, store, progress)


def _fetch(model: HubModel, store: Store, progress: Progress) -> Path:
    from huggingface_hub import HfApi

    info = HfApi().model_info(model.repo, revision=model.revision, files_metadata=True)
    found = store.find(model.source)
    if found is not None and info.sha is not None and store.revision(model.source) == info.sha:
        return found
    staged = store.partial(model.source) / "staged"
    staged.mkdir(exist_ok=True)
    siblings = {sibling.rfilename: sibling for sibling in info.siblings or []}
    _link_files(store.directory(model.source), staged, siblings)
    download = _Download(model, info.sha or model.revision, siblings, staged)
    path = download.run(progress)
    for leftover in staged.rglob(f"*{PART_SUFFIX}"):
        leftover.unlink()
    published = store.publish(model.source, staged, path, info.sha)
    shutil.rmtree(store.partial(model.source), ignore_errors=True)
    return published


def _link_files(old: Path, staged: Path, names: Collection[str]) -> None:
    """Let a new revision begin with the files of the one before; those that changed are fetched in their place."""
    for name in names:
        path, target = old / name, staged / name
        if path.is_file() and not target.exists():
            target.parent.mkdir(parents=True, exist_ok=True)
            with contextlib.suppress(OSError):
                os.link(path, target)


@dataclass(frozen=True, slots=True)
class _Download:
    """Brings one revision of a repository into `directory`."""

    model: HubModel
    commit: str
    siblings: dict[str, RepoSibling]
    directory: Path

    def run(self, progress: Progress) -> str:
        """Returns what the model's path is below `directory`."""
        gguf = self._choose_gguf()
        if gguf is not None:
            self._get([gguf], progress)
            return gguf
        self._get([name for name in _SMALL_FILES if name in self.siblings], progress)
        spec_from_config(self.directory / CONFIG_NAME)
        self._get(self._choose_weights(), progress)
        return "."

    def _choose_gguf(self) -> str | None:
        found = sorted(fnmatch.filter(self.siblings, "*.gguf"))
        if self.model.file is not None:
            if self.model.file not in found:
                raise SourceError(f"{self.model.source}: the repository has no {self.model.file}; {_listed(found)}")
            return self.model.file
        if CONFIG_NAME in self.siblings and self._has_safetensors():
            return None
        if len(found) == 1:
            return found[0]
        if found:
            raise SourceError(
                f"{self.model.source}: name one GGUF file, as in {SCHEME}{self.model.repo}/{found[0]}; {_listed(found)}"
            )
        raise SourceError(
            f"{self.model.source}: the repository holds neither {CONFIG_NAME} with safetensors nor a GGUF file"
        )

    def _has_safetensors(self) -> bool:
        return SINGLE_NAME in self.siblings or INDEX_NAME in self.siblings

    def _choose_weights(self) -> list[str]:
        if SINGLE_NAME in self.siblings:
            return [SINGLE_NAME]
        try:
            shards = set(json.loads((self.directory / INDEX_NAME).read_bytes())["weight_map"].values())
        except (ValueError, KeyError, TypeError, AttributeError):
            raise SourceError(f"{self.model.source}: {INDEX_NAME} is damaged") from None
        missing = sorted(str(shard) for shard in shards if shard not in self.siblings or Path(shard).name != shard)
        if missing:
            raise SourceError(f"{self.model.source}: the repository has no {missing[0]}, which its index names")
        return sorted(shards)

    def _get(self, names: Sequence[str], progress: Progress) -> None:
        total = sum(self.siblings[name].size or 0 for name in names)
        require_space(self.directory, max(0, total - _size_of(self.directory)))
        done = 0

        def report(growing: int) -> None:
            progress(done + growing, total, name)

        for name in names:
            fetch_file(RemoteFile(self.model.repo, self.commit, self.siblings[name]), self.directory, report)
            done += self.siblings[name].size or 0
            progress(done, total, name)


@contextlib.contextmanager
def _one_line_errors(model: HubModel) -> Iterator[None]:
    """The library's errors, which are many and long, in one line that says what to do."""
    from huggingface_hub import errors

    try:
        yield
    except errors.GatedRepoError:
        help_text = f"accept its terms at https://huggingface.co/{model.repo} and set HF_TOKEN to a token of yours"
        raise SourceError(f"{model.source}: the repository is gated; {help_text}") from None
    except errors.RevisionNotFoundError:
        raise SourceError(f"{model.source}: the repository has no revision '{model.revision}'") from None
    except errors.RepositoryNotFoundError:
        raise SourceError(f"{model.source}: no such repository, or it is private and needs HF_TOKEN") from None
    except errors.LocalEntryNotFoundError as error:
        # The library's way to say that it could not even ask.
        raise SourceError(
            f"{model.source}: the hub cannot be reached ({_first_line(error.__cause__ or error)})"
        ) from None
    except errors.EntryNotFoundError as error:
        raise SourceError(f"{model.source}: {_first_line(error)}") from None
    except errors.HfHubHTTPError as error:
        status = error.response.status_code if error.response is not None else "an error"
        raise SourceError(f"{model.source}: the hub answers {status}; {_first_line(error)}") from None
    except errors.HFValidationError as error:
        raise SourceError(f"{model.source}: {_first_line(error)}") from None
    except OSError as error:
        if error.errno is not None and error.filename is not None:
            raise
        raise SourceError(
            f"{model.source}: the download broke off ({_first_line(error)}); start again to go on"
        ) from None
    except Exception as error:  # the library's HTTP client has its own, not declared among its errors
        if type(error).__module__.partition(".")[0] not in ("httpx", "httpx2", "httpcore", "requests", "urllib3"):
            raise
        raise SourceError(f"{model.source}: the hub cannot be reached ({_first_line(error)})") from None


def _size_of(directory: Path) -> int:
    return sum(path.stat().st_size for path in directory.rglob("*") if path.is_file())


def _listed(names: Sequence[str]) -> str:
    return f"it has {', '.join(names[:8])}{', ...' if len(names) > 8 else ''}" if names else "it has none"


def _first_line(error: BaseException) -> str:
    lines = [line for line in str(error).splitlines() if line.strip()]
    return lines[0][:300] if lines else type(error).__name__
