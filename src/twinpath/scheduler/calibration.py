"""What steps cost on this machine, by running a few of each kind before anybody waits."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import count

from msgspec.structs import replace

from twinpath.scheduler.curve import CurvedCost
from twinpath.scheduler.scheduler import Scheduler
from twinpath.types import Request, SamplingParams

#: Rows of single prefill steps: few, so that a server is ready soon.
_PREFILL_ROWS = (4, 16, 64)
#: Streams that decode together, and tokens each.
_STREAMS = (1, 4)
_DECODE_TOKENS = 6
#: A prompt longer than a chunk and the stream behind it: what many rows and context cost.
_CONTEXT_TOKENS = 320
#: A prompt beside a stream.
_BESIDE_TOKENS = 128
#: Runs of each step of a curve: the first may still compile something.
_RUNS = 3
#: The beginning that prompts share, and what comes after it: few rows and many over a long context.
_SHARED_TOKENS = 16_384
_ROWS_BEHIND = (120, 248, 2048)


def calibrate(scheduler: Scheduler, answer: Callable[[list[Request]], None]) -> None:
    """Run requests by `answer`, which returns when they are done, and fit the scheduler's cost model to their steps."""
    numbers = count(1)

    def requests(*shapes: tuple[int, int]) -> list[Request]:
        return [warm_up_request(next(numbers), num_prompt, num_tokens) for num_prompt, num_tokens in shapes]

    most = min(scheduler.limits.max_num_batched_tokens, scheduler.window_tokens - _DECODE_TOKENS - 1)
    scheduler.cost.kept = []
    scheduler.lanes_paused = True
    for num_rows in _PREFILL_ROWS:
        answer(requests((min(num_rows, most), 1)))
    for num_streams in _STREAMS:
        answer(requests(*[(min(16, most), _DECODE_TOKENS)] * min(num_streams, scheduler.max_running)))
    long = min(_CONTEXT_TOKENS, scheduler.window_tokens - _DECODE_TOKENS - 1)
    answer(requests((long, _DECODE_TOKENS)))
    if isinstance(scheduler.cost, CurvedCost):
        _run_curve(scheduler, scheduler.cost, answer, numbers)
    scheduler.lanes_paused = False
    scheduler.cost.fit(scheduler.cost.kept)
    # As it will be: a prompt beside streams. Its steps correct what the fit could not tell apart.
    answer(requests((8, 2 * _DECODE_TOKENS), (min(_BESIDE_TOKENS, long), 2)))
    scheduler.cost.kept = None


def _run_curve(
    scheduler: Scheduler, cost: CurvedCost, answer: Callable[[list[Request]], None], numbers: Iterator[int]
) -> None:
    """A step of every size, and few rows behind a long beginning."""
    most = min(scheduler.limits.max_num_batched_tokens, scheduler.window_tokens - 2)
    for num_rows in [size for size in cost.sizes if size <= most]:
        for _ in range(_RUNS):
            answer([warm_up_request(next(numbers), num_rows, 1)])
    num_shared = min(_SHARED_TOKENS, scheduler.window_tokens // 2)
    page_size = scheduler.info.page_size
    shared = warm_up_request(next(numbers), num_shared // page_size * page_size, 1)
    answer([shared])
    for num_behind in _ROWS_BEHIND:
        for _ in range(_RUNS):
            number = next(numbers)
            behind = [1 + number % (scheduler.info.vocab_size - 1)] * min(num_behind, num_shared // 2)
            answer([replace(shared, request_id=f"warm-up {number}", prompt_ids=[*shared.prompt_ids, *behind])])


def warm_up_request(number: int, num_prompt: int, num_tokens: int) -> Request:
    """A greedy request that nobody sees and that shares no prefix with another."""
    return Request(
        request_id=f"warm-up {number}",
        prompt_ids=[0] * num_prompt,
        sampling=SamplingParams(max_tokens=num_tokens, temperature=0.0),
        cache_salt=f"twinpath warm-up {number}",
    )
