"""The gateway's calls about what outlives requests: sessions and pinned templates."""

from __future__ import annotations

from twinpath.ipc.messages import (
    Answer,
    Call,
    EndSession,
    ListSessions,
    ListTemplates,
    PinTemplate,
    SessionCard,
    TemplateCard,
    UnpinTemplate,
)
from twinpath.kv import Session, Template
from twinpath.scheduler.scheduler import Scheduler
from twinpath.types import (
    AdmittedEvent,
    ErrorEvent,
    Event,
    FinishEvent,
    FinishReason,
    Request,
    SamplingParams,
    TokensEvent,
)

#: Namespace of templates that are for everybody: no caller's salt looks like this one.
_SHARED_SALT = "shared template"


class Holdings:
    """Answers at once, but for pinning: a template's pages are computed by a request of our own."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self._memory = scheduler.memory
        #: Request id -> the call it serves.
        self._pinning: dict[str, tuple[PinTemplate, Template]] = {}
        self._num_calls = 0

    @property
    def num_pending(self) -> int:
        return len(self._pinning)

    def handle(self, call: Call) -> list[Answer]:
        """Answers that are ready."""
        match call:
            case ListSessions(call_id, tenant, key):
                return [Answer(call_id, sessions=self._sessions(tenant, key))]
            case EndSession(call_id, key):
                return [self._end_session(call_id, key)]
            case PinTemplate():
                return self._pin(call)
            case UnpinTemplate(call_id, name):
                return self._unpin(call_id, name)
            case ListTemplates(call_id):
                return [Answer(call_id, templates=[self._card(one) for one in self._memory.templates.all()])]

    def sift(self, events: list[Event]) -> tuple[list[Event], list[Answer]]:
        """Events for clients, and answers to calls whose requests ended."""
        others, answers = [], []
        for event in events:
            if event.request_id not in self._pinning:
                others.append(event)
            elif not isinstance(event, TokensEvent | AdmittedEvent):
                answers.append(self._pinned(event))
        return others, answers

    # ------------------------------------------------------------------------------------------------------ sessions

    def _sessions(self, tenant: str, key: str | None) -> list[SessionCard]:
        self._memory.expire_sessions()
        sessions = self._memory.sessions
        found = sessions.of_tenant(tenant) if key is None else [one for one in [sessions.get(key)] if one is not None]
        return [self._session_card(session) for session in found if session.tenant == tenant]

    def _end_session(self, call_id: int, key: str) -> Answer:
        session = self._memory.sessions.get(key)
        if session is None:
            return Answer(call_id)
        card = self._session_card(session)
        self._memory.sessions.close(key)
        return Answer(call_id, sessions=[card])

    def _session_card(self, session: Session) -> SessionCard:
        now_s, sessions = self._memory.now_s, self._memory.sessions
        page_size = self._scheduler.info.page_size
        return SessionCard(
            session.name,
            session.num_turns,
            session.num_active,
            session.num_pages,
            max((chain.num_pages for chain in session.chains), default=0) * page_size,
            now_s - session.created_s,
            now_s - session.used_s,
            sessions.ttl_s if session.num_active else max(session.used_s + sessions.ttl_s - now_s, 0.0),
        )

    # ----------------------------------------------------------------------------------------------------- templates

    def _pin(self, call: PinTemplate) -> list[Answer]:
        page_size = self._scheduler.info.page_size
        prompt = call.prompt
        num_tokens = len(prompt.prompt_ids)
        if num_tokens >= self._scheduler.window_tokens:
            most = self._scheduler.window_tokens - 1
            return [Answer(call.call_id, f"the template has {num_tokens} tokens; at most {most} fit the window")]
        salt = _SHARED_SALT if prompt.shared else prompt.cache_salt
        template = Template(prompt.name, num_tokens, salt, prompt.shared, num_tokens // page_size)
        refusal = self._memory.refusal(template, self._scheduler.roster.sequences.values())
        if refusal is not None:
            return [Answer(call.call_id, refusal)]
        self._num_calls += 1
        request = Request(
            request_id=f"template-{self._num_calls}",
            prompt_ids=prompt.prompt_ids[: template.num_pages * page_size],
            sampling=SamplingParams(max_tokens=1, temperature=0.0),
            cache_salt=salt,
        )
        self._pinning[request.request_id] = call, template
        _, answers = self.sift(self._scheduler.add(request))
        if not answers:
            self._memory.templates.add(template)
            self._scheduler.roster.sequences[request.request_id].template = template
        return answers

    def _pinned(self, event: FinishEvent | ErrorEvent) -> Answer:
        call, template = self._pinning.pop(event.request_id)
        if isinstance(event, FinishEvent) and event.reason is not FinishReason.ABORT:
            return Answer(call.call_id, templates=[self._card(template)])
        if not template.dropped:
            self._memory.remove_template(template.name)
        reason = event.message if isinstance(event, ErrorEvent) else "it was deleted"
        return Answer(call.call_id, f"the template was not computed: {reason}")

    def _unpin(self, call_id: int, name: str) -> list[Answer]:
        template = self._memory.remove_template(name)
        if template is None:
            return [Answer(call_id)]
        answers = [Answer(call_id, templates=[self._card(template)])]
        for request_id, (_, pending) in list(self._pinning.items()):
            if pending is template:
                answers += self.sift(self._scheduler.cancel(request_id))[1]
        return answers

    def _card(self, template: Template) -> TemplateCard:
        return TemplateCard(
            template.name,
            template.num_tokens,
            template.num_pages * self._scheduler.info.page_size,
            template.num_pages,
            template.shared,
            template.chain is not None,
            template.num_hits,
        )
