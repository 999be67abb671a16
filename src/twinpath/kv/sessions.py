"""Sessions: conversations whose pages are kept between turns, softly, and for a limited time."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush
from math import inf

import numpy as np

from twinpath.kv.chain import Chain
from twinpath.kv.pages import PagePool
from twinpath.types import Int32s

#: Sessions known at once; the one unused for longest ends for a newcomer.
MAX_SESSIONS = 4096
#: Parallel sub-agents share a session, each with a context of its own; the one unused for longest is let go.
MAX_CHAINS = 16
#: Nobody fades earlier than this after a turn: of tool pauses nine in ten are shorter than 72 s.
FRESH_S = 90.0


@dataclass(slots=True, eq=False)
class Session:
    """One conversation. `key` is unique over all tenants; `name` is what its client calls it."""

    key: str
    tenant: str
    name: str
    created_s: float
    #: Last begin or end of a turn.
    used_s: float
    num_turns: int = 0
    #: Turns that wait or run.
    num_active: int = 0
    #: Contexts, the one used last at the end.
    chains: list[Chain] = field(default_factory=list)
    #: Until here its pages go before no cold prefix; see `SessionTable`.
    fade_s: float = 0.0
    #: It expired or was deleted, and is another one's if it comes again.
    closed: bool = False

    @property
    def num_pages(self) -> int:
        """Distinct pages that it claims."""
        return len(np.unique(np.concatenate([chain.pages for chain in self.chains]))) if self.chains else 0


class SessionTable:
    """Claims pages for sessions, and drops claims when time or need says so.

    A claim decays: while it is fresh the pages stay before cold prefixes, and sessions give way in the order in which
    they fade. One that came back often fades later (half its time to live after the first turn, towards all of it
    with many, and FRESH_S in any case): clients that name each single request do not push out conversations. At the
    end of `ttl_s` without a turn the pages are free. Seconds are those of the caller's clock.

    Invariant: a claimed page is cached, so its chain can be used without asking the prefix index.
    """

    def __init__(self, pool: PagePool, ttl_s: float) -> None:
        self.ttl_s = ttl_s
        self.num_expired = 0
        self._pool = pool
        self._sessions: dict[str, Session] = {}
        #: Those without a turn, by the end of their last.
        self._resting: OrderedDict[str, Session] = OrderedDict()
        #: (fade_s, tie, session); an entry whose time is not the session's own any more is void.
        self._fading: list[tuple[float, int, Session]] = []
        self._num_pushed = 0
        #: Pages that were also used by requests without a session: left as prefixes when the session ends.
        self._is_public = np.zeros(pool.num_pages, np.bool_)
        pool.listeners.append(self._forget_pages)

    def __len__(self) -> int:
        return len(self._sessions)

    @property
    def next_expiry_s(self) -> float:
        """When the next session expires if nothing happens; infinite when none will."""
        first = next(iter(self._resting.values()), None)
        return inf if first is None else first.used_s + self.ttl_s

    @property
    def next_fade_s(self) -> float:
        """When the session that gives way next has faded; infinite when none has pages."""
        while self._fading:
            fade_s, _, session = self._fading[0]
            if not session.closed and session.chains and fade_s == session.fade_s:
                return fade_s
            heappop(self._fading)
        return inf

    # ----------------------------------------------------------------------------------------------------- turns

    def begin(self, key: str, tenant: str, name: str, now_s: float) -> Session:
        """A turn came; the session is opened when it is not known."""
        self.expire(now_s)
        session = self._sessions.get(key)
        if session is None:
            if len(self._sessions) >= MAX_SESSIONS and self._resting:
                self._close(next(iter(self._resting.values())))
            session = self._sessions[key] = Session(key, tenant, name, now_s, now_s)
        else:
            self._resting.pop(key, None)
        session.num_active += 1
        self._touch(session, now_s)
        return session

    def find(self, session: Session, tokens: Int32s, num_tokens: int, salt: str) -> tuple[Chain, int] | None:
        """The session's context with the most pages that `tokens[:num_tokens]` begins with, and their number."""
        best: Chain | None = None
        most = 0
        for chain in session.chains:
            num_pages = chain.num_common_pages(tokens, num_tokens) if chain.salt == salt else 0
            if num_pages > most:
                best, most = chain, num_pages
        return None if best is None else (best, most)

    def keep(self, session: Session, context: Chain) -> None:
        """A turn's cached pages become the session's; what they continue is replaced."""
        if session.closed or not context.num_pages:
            return
        for chain in session.chains:
            shorter = min(chain.num_pages, context.num_pages)
            if shorter and (chain.pages[:shorter] == context.pages[:shorter]).all():
                if shorter < context.num_pages:
                    self._pool.claim(context.pages[shorter:])
                else:
                    context = chain
                session.chains.remove(chain)
                session.chains.append(context)
                return
        self._pool.claim(context.pages)
        session.chains.append(context)
        if len(session.chains) > MAX_CHAINS:
            self._drop(session.chains.pop(0).pages)

    def end(self, session: Session, now_s: float) -> None:
        """A turn is over, in whatever way."""
        session.num_active -= 1
        if session.closed:
            return
        session.num_turns += 1
        self._touch(session, now_s)
        if not session.num_active:
            self._resting[session.key] = session

    def note_public(self, pages: Int32s) -> None:
        """Requests without a session use these cached pages."""
        self._is_public[pages] = True

    # ------------------------------------------------------------------------------------------------------- ends

    def expire(self, now_s: float) -> None:
        """End every session that had no turn for its time to live."""
        while self._resting and self.next_expiry_s <= now_s:
            self._close(next(iter(self._resting.values())))
            self.num_expired += 1

    def close(self, key: str) -> bool:
        """End a session; a turn that runs goes on, and leaves nothing behind. False when it is not known."""
        session = self._sessions.get(key)
        if session is not None:
            self._close(session)
        return session is not None

    def give_way(self, before_s: float = inf) -> bool:
        """Free a page or more: the tail of the context unused for longest, of the session that fades first. False when
        none of those that fade before the given time has a page that is not in use."""
        while self.next_fade_s < before_s:
            session = self._fading[0][2]
            chain = session.chains[0]
            num_free = self._pool.num_free
            while chain.num_pages and self._pool.num_free == num_free:
                self._drop(chain.cut(chain.num_pages - 1), keep_public=False)
            if not chain.num_pages:
                session.chains.remove(chain)
            if self._pool.num_free > num_free:
                return True
        return False

    def of_tenant(self, tenant: str) -> list[Session]:
        return [session for session in self._sessions.values() if session.tenant == tenant]

    def chains(self) -> list[Chain]:
        """All contexts of all sessions."""
        return [chain for session in self._sessions.values() for chain in session.chains]

    def get(self, key: str) -> Session | None:
        return self._sessions.get(key)

    def _forget_pages(self, pages: list[int]) -> None:
        self._is_public[pages] = False

    def _touch(self, session: Session, now_s: float) -> None:
        session.used_s = now_s
        weight = 1.0 if session.num_active else session.num_turns / (session.num_turns + 1)
        session.fade_s = now_s + min(max(weight * self.ttl_s, FRESH_S), self.ttl_s)
        if len(self._fading) > 2 * len(self._sessions) + 64:
            self._fading = [entry for entry in self._fading if not entry[2].closed and entry[0] == entry[2].fade_s]
            heapify(self._fading)
        self._num_pushed += 1
        heappush(self._fading, (session.fade_s, self._num_pushed, session))

    def _close(self, session: Session) -> None:
        session.closed = True
        del self._sessions[session.key]
        self._resting.pop(session.key, None)
        for chain in session.chains:
            self._drop(chain.pages)
        session.chains.clear()

    def _drop(self, pages: Int32s, *, keep_public: bool = True) -> None:
        """Give up one claim on each; whom nobody else knows is free."""
        left = self._pool.unclaim(pages)
        if keep_public:
            left = left[~self._is_public[left]]
        self._pool.evict(left.tolist())

    # -------------------------------------------------------------------------------------------------- integrity

    def check_integrity(self) -> None:
        """Raise AssertionError unless the pool's claims are the sessions', and every session is in its place."""
        claims = np.zeros(self._pool.num_pages, np.int32)
        for key, session in self._sessions.items():
            assert session.key == key and not session.closed
            assert (session.num_active == 0) == (key in self._resting), "a session is neither resting nor active"
            for chain in session.chains:
                assert chain.num_pages, "an empty context is kept"
                claims[chain.pages] += 1
                assert len(set(chain.pages.tolist())) == chain.num_pages, "a page is twice in a context"
        assert (claims == self._pool.claims()).all(), "claims differ"
        used = [session.used_s for session in self._resting.values()]
        assert used == sorted(used), "resting sessions are not in order"
        live = {id(entry[2]) for entry in self._fading if entry[0] == entry[2].fade_s}
        assert all(id(s) in live for s in self._sessions.values() if s.chains), "a session would never give way"
        public = np.flatnonzero(self._is_public).tolist()
        assert set(public) <= set(self._pool.cached_pages()), "a page is public, but not cached"
