"""Composition root of the engine process: `python -m twinpath.worker --fd N --settings JSON`.

Builds engine, scheduler and loop, says Ready after one real forward, and leaves when the gateway goes. With `--follow`
it is another rank of a model that several GPUs share, and leaves when the engine process does.
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import os
import signal
import socket
import sys
import traceback
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from time import monotonic
from typing import TYPE_CHECKING

from msgspec.structs import replace

from twinpath.contracts import Constraints, Engine
from twinpath.errors import TwinpathError, UserError
from twinpath.ipc import ChannelClosed, SocketChannel
from twinpath.ipc.messages import Fatal, Heartbeat, LoadProgress, Ready, StallGauges
from twinpath.ipc.settings import WorkerSettings, decode_settings, encode_settings
from twinpath.scheduler import (
    ConstraintsOnDemand,
    EngineLoop,
    HeartbeatThread,
    NoConstraints,
    describe_lanes,
    make_scheduler,
    resolve_step_tokens,
)
from twinpath.spawn import LATER
from twinpath.telemetry.stalls import StallTracer

if TYPE_CHECKING:
    from twinpath.grammar import GrammarCompiler
    from twinpath.text.text_model import TextModel

_PR_SET_PDEATHSIG = 1
#: A thread that wants the interpreter has it this soon after it asked (the default is 5 ms, two steps long).
_SWITCH_INTERVAL_S = 0.0005

Report = Callable[[int, int, str], None]
OnLoss = Callable[[str, bool], None]


def main(argv: list[str] | None = None) -> int:
    """Exit code: 0 after Drain or when the gateway is gone, 2 for a user's mistake, 1 for any other failure."""
    parser = argparse.ArgumentParser(prog="twinpath.worker")
    parser.add_argument("--fd", type=int, required=True)
    parser.add_argument("--bell", type=int, help="an eventfd that rings when a message will come soon")
    parser.add_argument("--settings", required=True)
    parser.add_argument("--follow", action="store_true")
    arguments = parser.parse_args(argv)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    _die_with_parent()
    if arguments.follow:
        _follow(arguments.fd, decode_settings(arguments.settings))
        return 0
    channel = SocketChannel(socket.socket(fileno=arguments.fd), arguments.bell)
    settings = arguments.settings
    if settings == LATER:
        settings = read_settings()
        if not settings:
            return 0
    heartbeat = HeartbeatThread(channel)
    heartbeat.start()
    try:
        _serve(decode_settings(settings), channel, heartbeat)
    except ChannelClosed:
        return 0
    except UserError as error:
        return _fatal(channel, str(error), user_error=True)
    except Exception as error:
        if not isinstance(error, TwinpathError):
            traceback.print_exc()
        return _fatal(channel, f"{type(error).__name__}: {error}", user_error=False)
    return 0


def read_settings() -> str:
    """Our settings, once whoever started us knows them; nothing when it has gone. Meanwhile: what most of us need."""
    import twinpath.engine.cpu
    import twinpath.grammar
    import twinpath.model.weights
    import twinpath.text  # noqa: F401

    return sys.stdin.read()


def _serve(settings: WorkerSettings, channel: SocketChannel, heartbeat: HeartbeatThread) -> None:
    started_s = monotonic()

    def report(done: int, total: int, what: str) -> None:
        channel.send(LoadProgress(done, total, what))

    sys.setswitchinterval(_SWITCH_INTERVAL_S)
    gc.disable()  # All that is made now stays, and the loop collects when it rests.

    def on_loss(reason: str, is_user_error: bool) -> None:
        """The main thread may be waiting for a card that waits for the rank that is lost."""
        os._exit(_fatal(channel, reason, user_error=is_user_error))

    engine, facts, constraints = load(settings, report, on_loss)
    scheduler = make_scheduler(settings.scheduler, engine.info, monotonic)
    limits = scheduler.limits
    channel.spin_s = settings.engine.spin_s or 0.0
    loop = EngineLoop(engine, scheduler, channel, constraints=constraints, spins=channel.spin_s > 0.0)
    channel.on_bell = loop.rehearse
    heartbeat.source = watch_stalls(loop, settings.scheduler.trace_stalls_ms)
    if settings.engine.kind != "scripted":  # A script's answers are for its requests.
        loop.warm_up()
    info = engine.info
    facts = {
        **facts,
        "step tokens": str(limits.max_num_batched_tokens),
        "lanes": describe_lanes(limits, scheduler.cost),
        "KV pool": f"{info.num_pages * info.page_size:,} tokens in pages of {info.page_size}",
        "load": f"{monotonic() - started_s:.2f} s",
    }
    gc.collect()  # Nor does the first request wait for that.
    gc.freeze()
    _return_freed_memory()
    channel.send(
        Ready(
            info.vocab_size,
            scheduler.window_tokens,
            info.page_size,
            info.num_pages,
            info.description,
            scheduler.max_running,
            facts,
        )
    )
    loop.run()
    engine.close()


def load(settings: WorkerSettings, report: Report, on_loss: OnLoss) -> tuple[Engine, dict[str, str], Constraints]:
    """The engine, its lines for the start table, and what constrains its answers.

    Building the vocabulary holds the interpreter, for a second when it is large: so it is done beside the load and
    before there are requests. Raises: what `build_engine` raises, at once.
    """
    building = ThreadPoolExecutor(1, thread_name_prefix="vocabulary").submit(make_constraints, settings)
    engine, facts = build_engine(settings, report, on_loss)
    constraints = building.result()
    if isinstance(constraints, NoConstraints):
        facts = {**facts, "grammars": f"none: {constraints.reason}"}
    return engine, facts, constraints


def make_constraints(settings: WorkerSettings) -> Constraints:
    """What compiles requests' grammars over the model's vocabulary; one that refuses them where that cannot be."""
    if settings.engine.kind == "scripted":
        return ConstraintsOnDemand(lambda: build_compiler(settings))
    try:
        return build_compiler(settings)
    except Exception as error:  # The engine serves without, and where it cannot either it says why.
        return NoConstraints(f"{type(error).__name__}: {error}")


def build_compiler(settings: WorkerSettings) -> GrammarCompiler:
    from twinpath.grammar import GrammarCompiler, Vocabulary

    text, num_rows = load_tokens(settings)
    tokens = text.tokenizer
    # With a dummy prefix, text in the middle of an answer is not encoded as it would be at its beginning.
    encode = tokens.encode if tokens.rules.dummy_prefix == "none" else None
    return GrammarCompiler(Vocabulary(tokens, num_rows, text.stop_token_ids, encode))


def load_tokens(settings: WorkerSettings) -> tuple[TextModel, int]:
    """The model's tokens, for grammars, and how many rows its output has."""
    from twinpath.model.files import files_at
    from twinpath.text import load_text

    if settings.engine.kind == "scripted":
        from twinpath.engine.scripted import load_script
        from twinpath.text.byte_model import byte_model

        return byte_model(), load_script(settings.engine.model_path).engine.vocab_size
    text = load_text(files_at(settings.engine.model_path), override_template="")  # Nothing is rendered here.
    return text, text.tokenizer.vocab_size


def watch_stalls(loop: EngineLoop, threshold_ms: float) -> Callable[[], Heartbeat]:
    """The loop's heartbeat, with what held up the loop when somebody wants to know."""
    if not threshold_ms:
        return loop.heartbeat
    tracer = StallTracer(threshold_ms / 1e3)
    loop.beat = tracer.watch_beat("engine")
    tracer.start()

    def heartbeat() -> Heartbeat:
        beat = loop.heartbeat()
        stalls = StallGauges(tracer.num_stalls, tracer.worst_s * 1e3)
        return replace(beat, gauges=replace(beat.gauges, stalls=stalls))

    return heartbeat


def build_engine(
    settings: WorkerSettings, report: Report, on_loss: OnLoss | None = None
) -> tuple[Engine, dict[str, str]]:
    """The engine the settings name, loaded, and its lines for the start table. Imports only what that kind needs.

    on_loss: told when a GPU that shares the model is lost; the engine cannot be used any more.
    """
    config = settings.engine
    if config.kind == "scripted":
        from twinpath.engine.scripted import ScriptedEngine, load_script

        scripted = ScriptedEngine(load_script(config.model_path))
        return scripted, scripted.facts
    if config.kind == "reference":
        try:
            from twinpath.engine.reference_load import open_reference
        except ModuleNotFoundError as error:
            if error.name != "torch":
                raise
            raise UserError("the reference engine needs torch: pip install 'torch>=2.11,<2.14'") from None
        reference = open_reference(config, settings.scheduler, report)
        return reference, reference.facts
    return _build_cuda(settings, report, on_loss) if config.device == "cuda" else _build_native(settings, report)


def _build_cuda(settings: WorkerSettings, report: Report, on_loss: OnLoss | None) -> tuple[Engine, dict[str, str]]:
    size = settings.scheduler.max_num_seqs, _step_tokens(settings)
    if settings.engine.tensor_parallel_size == 1:
        from twinpath.engine.cuda.load import open_cuda

        engine = open_cuda(settings.engine, *size, report)
        return engine, engine.facts
    from twinpath.engine.cuda.rank_load import open_ranks

    text = encode_settings(settings.engine, settings.scheduler)

    def command(fd: int) -> list[str]:
        return [sys.executable, "-m", "twinpath.worker", "--follow", "--fd", str(fd), "--settings", text]

    engine = open_ranks(settings.engine, *size, report, command, on_loss or (lambda *_: None))
    return engine, engine.facts


def _follow(fd: int, settings: WorkerSettings) -> None:
    from twinpath.engine.cuda.rank_load import run_rank
    from twinpath.engine.cuda.rank_messages import RankChannel

    channel = RankChannel(socket.socket(fileno=fd))
    run_rank(channel, settings.engine, settings.scheduler.max_num_seqs, _step_tokens(settings))


def _step_tokens(settings: WorkerSettings) -> Callable[[int], int]:
    """Most tokens of a CUDA step, from the window in tokens."""
    return lambda window_tokens: resolve_step_tokens(settings.scheduler, "cuda", window_tokens)


def _build_native(settings: WorkerSettings, report: Report) -> tuple[Engine, dict[str, str]]:
    from twinpath.engine.cpu import CpuEngine, CpuOptions, kv_page_bytes
    from twinpath.model.files import files_at
    from twinpath.model.weights import load_weights, read_spec
    from twinpath.native.cores import yield_to_waking_tasks

    config = settings.engine
    files = files_at(config.model_path)
    spec = read_spec(files)
    if config.max_model_len is not None and config.max_model_len > spec.max_position:
        raise UserError(f"max_model_len {config.max_model_len} is beyond the model's window of {spec.max_position}")
    num_pages = None
    if config.kv_cache_mb is not None:
        num_pages = config.kv_cache_mb * 2**20 // kv_page_bytes(spec, config.page_size)
        if num_pages == 0:
            raise UserError(f"kv_cache_mb {config.kv_cache_mb} holds no page of {config.page_size} tokens")
    window_tokens = config.max_model_len or spec.max_position
    options = CpuOptions(
        threads=config.threads,
        isa=config.isa,
        activation_bits=config.activation_bits,
        page_size=config.page_size,
        num_pages=num_pages,
        max_model_len=config.max_model_len,
        max_slots=settings.scheduler.max_num_seqs,
        max_step_tokens=resolve_step_tokens(settings.scheduler, "cpu", window_tokens),
    )
    yield_to_waking_tasks()  # Before the engine starts its threads.
    engine = CpuEngine(spec, load_weights(files, spec), options, report)
    return engine, engine.facts


def _fatal(channel: SocketChannel, message: str, *, user_error: bool) -> int:
    try:
        channel.send(Fatal(" ".join(message.split()), user_error))
    except ChannelClosed:
        return 0
    return 2 if user_error else 1


def _return_freed_memory() -> None:
    """glibc keeps what the load has freed (10 MB) until it is told to look; others need no telling."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


def _die_with_parent() -> None:
    """Linux: SIGKILL when the gateway dies, also while a native call keeps us from seeing the socket close."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


if __name__ == "__main__":
    code = main()
    sys.stderr.flush()
    # Not sys.exit: threads may be inside native code, and there is nothing left worth tearing down.
    os._exit(code)
