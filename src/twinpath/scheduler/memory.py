"""Decisions about memory: who gets pages, what is taken back for them, and who gives way.

The order under pressure: expired sessions, then cold prefixes and faded sessions (oldest first), then FLEX requests
that run, then sessions that have not faded. A FAST request that runs gives way only when nobody else is left.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from math import inf

import numpy as np

from twinpath.contracts import Clock
from twinpath.kv import Chain, PagePool, PrefixCache, SessionTable, SlabLedger, Template, TemplateTable
from twinpath.scheduler.chunk import Row
from twinpath.scheduler.policy import Policy, over_age
from twinpath.scheduler.residency import Residency
from twinpath.scheduler.sequence import Lane, Phase, Sequence
from twinpath.types import EngineInfo, Int32s, Request

#: Slabs of a pool: a lane that needs more takes a sixteenth of the pool at a time.
_NUM_SLABS = 16
#: Slabs that are a lane's own. What FLEX holds beyond them it gives back when a FAST request needs pages to start.
_HOME = {Lane.FAST: 0.5, Lane.FLEX: 0.5}
#: Outputs of a FAST request expected before any has ended, and how fast the expectation follows those that have.
_FIRST_OUTPUTS = 256.0
_GAIN = 0.05
#: Pages kept for a FAST request's outputs are for so many times the mean, so that few outgrow them.
_MARGIN = 2.0
#: Sessions whose end is so near end together.
_LEAST_WAIT_S = 0.01

NO_PAGES: Int32s = np.empty(0, np.int32)


@dataclass(frozen=True, slots=True)
class MemorySettings:
    """What outlives its request, and for how long."""

    enable_prefix_caching: bool = True
    #: Keep what sessions computed between their turns; needs prefix caching.
    enable_sessions: bool = True
    session_ttl_s: float = 300.0
    #: Most of the pool that templates may pin.
    max_pinned_share: float = 0.5


DEFAULT_MEMORY = MemorySettings()


class Memory:
    """One pool of pages under everything; the bookkeeping is in `kv` and `Residency`, the choices are here."""

    def __init__(
        self,
        info: EngineInfo,
        window_tokens: int,
        settings: MemorySettings,
        policy: Policy,
        clock: Clock,
        *,
        has_lanes: bool,
    ) -> None:
        self.pool = PagePool(info.num_pages)
        self.prefix = PrefixCache(self.pool)
        self.sessions = SessionTable(self.pool, settings.session_ttl_s)
        self.templates = TemplateTable(self.pool, int(info.num_pages * settings.max_pinned_share))
        self.slabs = SlabLedger(info.num_pages, max(info.num_pages // _NUM_SLABS, 1), _HOME)
        self.residency = Residency(info, window_tokens, self.pool, self.prefix)
        #: Requests of the FAST lane that gave way, because nothing else was left.
        self.num_fast_preemptions = 0
        self._page_size = info.page_size
        self._settings = settings
        self._policy = policy
        self._clock = clock
        self._has_lanes = has_lanes
        self._mean_outputs = _FIRST_OUTPUTS

    @property
    def now_s(self) -> float:
        return self._clock()

    @property
    def block_tables(self) -> Int32s:
        return self.residency.block_tables

    # ----------------------------------------------------------------------------------------------- life of a turn

    def arrive(self, sequence: Sequence, request: Request) -> None:
        """A request came: its session waits for it from now on."""
        if request.session and self._settings.enable_sessions and self._settings.enable_prefix_caching:
            name = request.session_name or request.session
            sequence.session = self.sessions.begin(request.session, request.tenant, name, self._clock())

    def window_tokens(self, request: Request, most_tokens: int) -> int:
        """Tokens that fit beside the templates, of which the prompt may start with one; at most `most_tokens`."""
        num_left = self.pool.num_pages - self.templates.num_pages
        if num_left * self._page_size >= most_tokens:
            return most_tokens
        found = None
        if request.sampling.prompt_logprobs is None:  # Those compute every token.
            tokens = np.array(request.prompt_ids, np.int32)
            found = self.templates.find(tokens, len(tokens) - 1, request.cache_salt)
        return min(most_tokens, (num_left + (0 if found is None else found[1])) * self._page_size)

    def num_cached(self, sequence: Sequence) -> int:
        """Known tokens whose KV is there now; asked before admission."""
        return len(self._find_cached(sequence)[1]) * self._page_size

    def admit(self, sequence: Sequence, running: list[Sequence], *, is_late: bool = False) -> bool:
        """A slot and pages for all known tokens of a waiting sequence, or nothing."""
        if not self.residency.has_slot:
            return False
        self.sessions.expire(self._clock())
        head, cached = self._find_cached(sequence)
        num_fresh = -(-sequence.num_known // self._page_size) - len(cached)
        if num_fresh > self._room(sequence, running, cached, is_late):
            return False
        self.residency.bind(sequence, cached)
        sequence.num_bound_pages = len(cached)
        self._append_pages(sequence, num_fresh)
        if head is not None:
            self.templates.note_hit(head)
        if not sequence.started:
            sequence.cached_tokens = min(sequence.num_computed, sequence.num_prompt)
            self.prefix.num_queried_tokens += sequence.num_prompt
            self.prefix.num_hit_tokens += sequence.cached_tokens
        return True

    def extend(self, sequence: Sequence, num_tokens: int, running: list[Sequence]) -> bool:
        """Pages for the first `num_tokens` positions of a running sequence; False when somebody has to give way."""
        for _ in range(self.residency.num_missing_pages(sequence, num_tokens)):
            if not self.pool.num_free + self.pool.num_cold:
                if not self.pool.num_kept:
                    return False
                flex = _flex(running)
                if flex and self._policy.victim(flex) is not sequence:
                    return False
            self._append_pages(sequence, 1)
        return True

    def extend_ahead(self, rows: list[Row], num_tokens: int) -> bool:
        """Pages for `num_tokens` more positions of every row, or nothing."""
        size = self._page_size
        missing = [
            (row.sequence, num_pages)
            for row in rows
            if (num_pages := (row.start + num_tokens - 1) // size + 1 - len(row.sequence.pages)) > 0
        ]
        if missing and sum([num_pages for _, num_pages in missing]) > self.pool.num_free + self.pool.num_cold:
            return False
        for sequence, num_pages in missing:
            self._append_pages(sequence, num_pages)
        return True

    def offer_prefix(self, sequence: Sequence) -> None:
        """Make newly full, computed pages findable."""
        if self._settings.enable_prefix_caching:
            self.residency.offer_prefix(sequence)

    def give_back(self, sequence: Sequence) -> None:
        """It was preempted: slot and pages, whose content can still be found as a prefix."""
        self.slabs.give_back(sequence.lane, sequence.num_drawn_pages)
        sequence.num_bound_pages = sequence.num_drawn_pages = 0
        self.residency.give_back(sequence, self._clock())

    def leave(self, sequence: Sequence) -> None:
        """Its request is over and no outstanding plan touches it: its session and template keep what is theirs."""
        if not sequence.is_complete:
            self._forget_outputs(sequence)
        if sequence.slot >= 0:
            context = self._context(sequence)
            if sequence.template is not None and context.num_pages == sequence.template.num_pages:
                self.templates.pin(sequence.template, context)
            if sequence.session is not None:
                self.sessions.keep(sequence.session, context)
            else:
                self.sessions.note_public(context.pages)
            self.give_back(sequence)
        if sequence.session is not None:
            self.sessions.end(sequence.session, self._clock())
        if sequence.is_complete and sequence.lane is Lane.FAST:
            self._mean_outputs += _GAIN * (sequence.num_outputs - self._mean_outputs)

    # ---------------------------------------------------------------------------------------------------- giving way

    def victim(self, running: list[Sequence]) -> Sequence:
        """Who of `running` (oldest first, not empty) gives way when pages run out."""
        return self._policy.victim(_flex(running) or running)

    def debtor(self, sequence: Sequence, running: list[Sequence]) -> Sequence | None:
        """A FLEX request that gives way so that a waiting FAST one can start: while FLEX holds slabs that are not its
        own, and giving them back is enough."""
        now_s = self._clock()
        flex = [other for other in _flex(running) if not over_age(other, now_s)]
        if not flex or not self.slabs.lent_to(Lane.FLEX):
            return None
        _, cached = self._find_cached(sequence)
        num_fresh = self.residency.num_missing_pages(sequence, sequence.num_known) - len(cached)
        num_coming = sum(other.num_drawn_pages for other in flex)
        if num_fresh > self._room(sequence, running, cached, is_late=False) + num_coming:
            return None
        return self._policy.victim(flex)

    def expire_sessions(self) -> float | None:
        """Free what is due; seconds until more will be, None when there is nothing to wait for."""
        now_s = self._clock()
        self.sessions.expire(now_s)
        next_s = self.sessions.next_expiry_s - now_s
        return None if next_s == inf else max(next_s, _LEAST_WAIT_S)

    def forget_prefixes(self) -> None:
        """Empty the prefix cache of everything nobody uses or keeps, and start its statistics again."""
        self.pool.forget_cold()
        self.prefix.num_queried_tokens = self.prefix.num_hit_tokens = 0

    def refusal(self, template: Template, live: Iterable[Sequence]) -> str | None:
        """Why a template cannot be added now, None when it can. `live`: who must find room beside it."""
        if not self._settings.enable_prefix_caching:
            return "templates need prefix caching, which is off"
        left_tokens = (self.pool.num_pages - self.templates.num_pages - template.num_pages) * self._page_size
        if any(sequence.num_prompt + sequence.max_outputs > left_tokens for sequence in live):
            return f"a request in flight may need more than the {max(left_tokens, 0)} tokens of KV that would be left"
        return self.templates.refusal(template)

    def remove_template(self, name: str) -> Template | None:
        """Its pages are prefixes like others from now on; None when there is none of this name."""
        return self.templates.remove(name, self._clock())

    def check_integrity(self, holders: list[Sequence]) -> None:
        """Raise AssertionError unless pool, index, sessions and templates agree, and `holders` hold all the rest."""
        self.pool.check_integrity()
        self.prefix.check_integrity()
        self.sessions.check_integrity()
        self.templates.check_integrity()
        self.residency.check_integrity(holders)
        pinned = [template.chain for template in self.templates.all() if template.chain is not None]
        for chain in (*self.sessions.chains(), *pinned):
            assert self.prefix.find(chain.keys[: chain.num_pages]) == chain.pages.tolist(), "keys are not the pages'"
        for lane in Lane:
            drawn = sum(sequence.num_drawn_pages for sequence in holders if sequence.lane is lane)
            assert drawn == self.slabs.num_drawn[lane], "a lane's pages are miscounted"

    # ------------------------------------------------------------------------------------------------------- details

    def _find_cached(self, sequence: Sequence) -> tuple[Chain | None, Int32s]:
        """Cached pages of its known tokens; at least one token is left to compute, for its logits.

        What its session or a template has is found by comparing tokens, and gives their keys as well: the chain that
        was used. The rest is found by keys.
        """
        if not self._settings.enable_prefix_caching or sequence.prompt_logprobs is not None:
            return None, NO_PAGES
        most_tokens = (sequence.num_known - 1) // self._page_size * self._page_size
        tokens, salt, keys = sequence.tokens, sequence.salt, sequence.keys
        found = self.templates.find(tokens, most_tokens, salt) if self.templates.num_pages else None
        if sequence.session is not None:
            own = self.sessions.find(sequence.session, tokens, most_tokens, salt)
            found = own if found is None or (own is not None and own[1] >= found[1]) else found
        chain, num_pages = (None, 0) if found is None else found
        head = NO_PAGES if chain is None else chain.pages[:num_pages]
        # The keys must be those of the pages, and what it computes itself must not bear the key of a shared template
        # that has gone since they were made.
        is_stale = keys.num_foreign > num_pages
        if chain is not None and (is_stale or keys.at(num_pages - 1) != chain.keys[num_pages - 1]):
            keys.adopt(chain.keys[:num_pages], num_pages if chain.salt != salt else chain.num_foreign)
        elif is_stale:
            keys.start_over()
        tail = self._find_by_keys(sequence, len(head), most_tokens // self._page_size)
        return chain, np.concatenate([head, np.array(tail, np.int32)]) if tail else head

    def _find_by_keys(self, sequence: Sequence, begin: int, end: int) -> list[int]:
        """Pages of the longest known run of its pages [begin, end). Most prompts are new from some page on: keys are
        made only a little further, for the others can wait until the first token is out."""
        pages: list[int] = []
        while begin < end:
            next_begin = min(2 * begin + 1, end)
            keys = sequence.keys.extend(sequence.tokens, next_begin * self._page_size)
            pages += (found := self.prefix.find(keys[:next_begin], begin))
            if len(found) < next_begin - begin:
                break
            begin = next_begin
        return pages

    def _room(self, sequence: Sequence, running: list[Sequence], cached: Int32s, is_late: bool) -> int:
        """Fresh pages that a waiting sequence may draw now.

        One spare page stays for each running sequence: else the newcomer is preempted at their next page border. FLEX
        leaves sessions alone while it can wait for somebody. FAST starts when pages for what FAST requests will
        probably say are there or with FLEX: once it runs it shall not have to give way.
        """
        room = self.pool.num_available
        spares_sessions = sequence.lane is Lane.FLEX and running and not is_late
        if spares_sessions:
            room -= self.pool.num_kept
        if len(cached):
            num_cold, num_kept = self.pool.num_idle_among(cached)
            room -= num_cold if spares_sessions else num_cold + num_kept
        spare = len(running)
        if self._has_lanes and sequence.lane is Lane.FAST and running:
            growth = self._growth(sequence) - self.slabs.num_drawn[Lane.FLEX]
            for other in running:
                if other.lane is Lane.FAST:
                    growth += self._growth(other)
            spare = max(spare, growth)
        return room - spare

    def _growth(self, sequence: Sequence) -> int:
        """Pages that a FAST request will probably draw for its outputs."""
        num_outputs = sequence.num_known - sequence.num_prompt
        expected, num_left = int(_MARGIN * self._mean_outputs - num_outputs), sequence.max_outputs - num_outputs
        return -(-min(max(expected, 1), num_left) // self._page_size)

    def _append_pages(self, sequence: Sequence, num_pages: int) -> None:
        """Pages that are free or idle."""
        if not num_pages:
            return
        while (num_missing := num_pages - self.pool.num_free) > 0:
            if not self.sessions.give_way(self.pool.oldest_cold_s):
                self.pool.evict_oldest(num_missing, self.sessions.next_fade_s)
        self.residency.append(sequence, self.pool.allocate_run(num_pages))
        sequence.num_drawn_pages += num_pages
        self.slabs.draw(sequence.lane, num_pages)

    def _forget_outputs(self, sequence: Sequence) -> None:
        """Nobody finds what it said: neither in its pages, nor where it left them when it was preempted."""
        first = sequence.num_prompt // self._page_size
        for index, page in enumerate(self.prefix.find(sequence.keys.keys, first), first):
            # Another request may say the same, in pages of its own.
            if self.pool.is_cold(page) or page in sequence.pages[index : index + 1]:
                self.prefix.withdraw(page)

    def _context(self, sequence: Sequence) -> Chain:
        """The pages of a request that ended, as far as they hold what counts: of one that did not end as asked, the
        prompt. What it said is forgotten."""
        num_tokens = sequence.num_computed
        if not sequence.is_complete:
            num_tokens = min(num_tokens, sequence.num_prompt)
        num_full = min(num_tokens // self._page_size, sequence.num_inserted_pages)
        keys = sequence.keys.keys[:num_full]
        num_bound = min(sequence.num_bound_pages, num_full)
        # Where another's page had the key first, and is gone by now, ours takes its place.
        self.prefix.insert(keys[num_bound:num_full], sequence.pages[num_bound:num_full])
        pages = sequence.pages[:num_bound] + self.prefix.find(keys, num_bound)
        keys = keys[: len(pages)]
        tokens = sequence.tokens[: len(pages) * self._page_size].copy()
        return Chain(tokens, keys, np.array(pages, np.int32), sequence.salt, sequence.keys.num_foreign)


def _flex(running: list[Sequence]) -> list[Sequence]:
    return [sequence for sequence in running if sequence.lane is Lane.FLEX and sequence.phase is Phase.RUNNING]
