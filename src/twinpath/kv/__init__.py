"""KV bookkeeping: which page of the pool belongs to whom, and which pages hold prefixes that can be reused.

Owns page ids, their reference counts and the prefix index. May import types only. Never holds tensors, reads a clock
or knows engines: the memory behind a page id belongs to the engine.
"""

from twinpath.kv.pages import PagePool
from twinpath.kv.prefix import PrefixCache, PrefixKeys

__all__ = ["PagePool", "PrefixCache", "PrefixKeys"]
