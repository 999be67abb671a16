"""Sessions and templates of one engine, as the HTTP side asks about them; templates survive the engine's end."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable

from twinpath.errors import EngineError, Overloaded, RequestError, UserError
from twinpath.ipc.messages import (
    Answer,
    Call,
    EndSession,
    ListSessions,
    ListTemplates,
    PinnedPrompt,
    PinTemplate,
    SessionCard,
    TemplateCard,
    ToEngine,
    UnpinTemplate,
)

logger = logging.getLogger(__name__)

#: A call that is no computation is answered between two steps.
_ANSWER_TIMEOUT_S = 30.0


class Holdings:
    """Calls to the engine and their answers.

    Invariant: what `pin` accepted is pinned in every later engine, before that engine sees a request.
    """

    def __init__(self, send: Callable[[ToEngine], None]) -> None:
        self._send = send
        self._is_up = False
        self._next_id = 0
        self._calls: dict[int, asyncio.Future[Answer]] = {}
        #: Accepted, or to be pinned by the first engine.
        self._templates: dict[str, PinnedPrompt] = {}
        #: Templates that the present engine has yet to compute.
        self._repinning: set[asyncio.Task[None]] = set()
        self._refusals: list[str] = []

    @property
    def num_computing(self) -> int:
        """Templates that an engine which just started has yet to compute."""
        return len(self._repinning)

    def preset(self, prompts: Iterable[PinnedPrompt]) -> None:
        """Pin these as soon as an engine is there."""
        for prompt in prompts:
            self._templates[prompt.name] = prompt
            if self._is_up:
                self._repin_soon(prompt)

    async def computed(self, timeout_s: float | None = None) -> None:
        """Wait while a new engine computes its templates, no longer than `timeout_s`: requests that came meanwhile
        would compute them once more each."""
        if self._repinning:
            await asyncio.wait(self._repinning, timeout=timeout_s)

    async def settle(self) -> None:
        """Wait for all templates. Raises: UserError when one was refused."""
        while self._repinning:
            await self.computed()
        if self._refusals:
            raise UserError(self._refusals[0])

    async def sessions(self, tenant: str, session: str | None = None) -> list[SessionCard]:
        """Raises: RequestError, as all of these."""
        return (await self._ask(lambda call_id: ListSessions(call_id, tenant, session))).sessions

    async def end_session(self, session: str) -> SessionCard | None:
        """None: it is not known."""
        return next(iter((await self._ask(lambda call_id: EndSession(call_id, session))).sessions), None)

    async def templates(self) -> list[TemplateCard]:
        return (await self._ask(ListTemplates)).templates

    async def pin(self, prompt: PinnedPrompt) -> TemplateCard:
        """Returns once it is computed. Raises: RequestError 409 when there is no room or the name is taken."""
        card = await self._pin(prompt)
        self._templates[prompt.name] = prompt
        return card

    async def unpin(self, name: str) -> TemplateCard | None:
        """None: there is no such template."""
        self._templates.pop(name, None)
        return next(iter((await self._ask(lambda call_id: UnpinTemplate(call_id, name))).templates), None)

    # ----------------------------------------------------------------------------------------------- from the engine

    def on_ready(self) -> None:
        """A new engine listens: it gets the templates of the one before."""
        self._is_up = True
        for prompt in self._templates.values():
            self._repin_soon(prompt)

    def on_answer(self, answer: Answer) -> None:
        future = self._calls.pop(answer.call_id, None)
        if future is not None and not future.done():
            future.set_result(answer)

    def on_down(self, reason: str) -> None:
        self._is_up = False
        calls, self._calls = self._calls, {}
        for future in calls.values():
            if not future.done():
                future.set_exception(EngineError(reason))

    def _repin_soon(self, prompt: PinnedPrompt) -> None:
        task = asyncio.create_task(self._repin(prompt))
        self._repinning.add(task)
        task.add_done_callback(self._repinning.discard)

    async def _repin(self, prompt: PinnedPrompt) -> None:
        try:
            await self._pin(prompt)
        except RequestError as error:
            if self._is_up:  # Else the next engine gets it.
                self._refusals.append(f"the template {prompt.name!r} cannot be pinned: {error.message}")
                logger.error(self._refusals[-1])
                self._templates.pop(prompt.name, None)

    async def _pin(self, prompt: PinnedPrompt) -> TemplateCard:
        # Computing it may queue behind other prompts: no time limit but the engine's life.
        answer = await self._ask(lambda call_id: PinTemplate(call_id, prompt), timeout_s=None)
        return answer.templates[0]

    async def _ask(self, make: Callable[[int], Call], timeout_s: float | None = _ANSWER_TIMEOUT_S) -> Answer:
        if not self._is_up:
            raise Overloaded("the engine is not ready", status=503, retry_after_s=2)
        self._next_id += 1
        call = make(self._next_id)
        future = self._calls[call.call_id] = asyncio.get_running_loop().create_future()
        self._send(call)
        try:
            async with asyncio.timeout(timeout_s):
                answer: Answer = await future
        except TimeoutError:
            raise Overloaded("the engine does not answer", status=503, retry_after_s=2) from None
        finally:
            self._calls.pop(call.call_id, None)
        if answer.refusal is not None:
            raise RequestError(f"{answer.refusal[:1].upper()}{answer.refusal[1:]}.", status=409, code="refused")
        return answer
