"""KV bookkeeping: which page of the pool belongs to whom, and which pages hold prefixes that can be reused.

Owns page ids, their reference counts, the prefix index, what sessions and templates keep, and how much each lane has
drawn. May import types only. Never holds tensors, reads a clock or knows engines: the memory behind a page id belongs
to the engine. Who gives way to whom is decided in `scheduler/memory.py`.
"""

from twinpath.kv.chain import Chain
from twinpath.kv.pages import PageCounts, PagePool
from twinpath.kv.prefix import PrefixCache, PrefixKeys
from twinpath.kv.sessions import Session, SessionTable
from twinpath.kv.slabs import SlabLedger
from twinpath.kv.templates import Template, TemplateTable

__all__ = [
    "Chain",
    "PageCounts",
    "PagePool",
    "PrefixCache",
    "PrefixKeys",
    "Session",
    "SessionTable",
    "SlabLedger",
    "Template",
    "TemplateTable",
]
