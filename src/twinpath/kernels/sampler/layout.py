"""Constants that the sampler's kernels share: columns of the tables in `spec`, and how words are packed."""

from __future__ import annotations

import triton.language as tl

INF = tl.constexpr(float("inf"))
LARGEST = tl.constexpr(3.4028234663852886e38)
LOG2_E = tl.constexpr(float.fromhex("0x1.71547652b82fep+0"))
LN2_HIGH = tl.constexpr(float.fromhex("0x1.62e42fee00000p-1"))
LN2_LOW = tl.constexpr(float.fromhex("0x1.a39ef35793c76p-33"))
#: Adding and subtracting it rounds a small float64 to an integer, ties to even.
ROUNDER = tl.constexpr(6755399441055744.0)
#: A bin's word: how many ids above, the sum of their weights / 2**8 below. Holds 2**18 ids.
COUNT_SHIFT = tl.constexpr(44)
SUM_MASK = tl.constexpr((1 << 44) - 1)
WEIGHT_SHIFT = tl.constexpr(8)
BIN_SPAN = tl.constexpr(24.5)
ID_BITS = tl.constexpr(20)
ID_MASK = tl.constexpr((1 << 20) - 1)
FEW = tl.constexpr(256)
LEAST = tl.constexpr(-(1 << 62))

# Columns; see spec.py (a kernel reads only constants of its own module).
INVERSE_TEMPERATURE = tl.constexpr(0)
TOP_P = tl.constexpr(1)
MIN_WEIGHT = tl.constexpr(2)
REPETITION = tl.constexpr(3)
FREQUENCY = tl.constexpr(4)
PRESENCE = tl.constexpr(5)
NUM_FLOATS = tl.constexpr(6)
SEED = tl.constexpr(0)
TOP_K = tl.constexpr(1)
NUM_PROMPT = tl.constexpr(2)
MIN_TOKENS = tl.constexpr(3)
FLAGS = tl.constexpr(4)
NUM_TOP = tl.constexpr(5)
NUM_INTS = tl.constexpr(6)
MAX_TOP = tl.constexpr(20)
NUM_SCORES = tl.constexpr(41)
HAS_PENALTIES = tl.constexpr(1)
HAS_BIAS = tl.constexpr(2)
HAS_STOPS = tl.constexpr(4)
IS_GREEDY = tl.constexpr(8)
# Workspace.rows
NUM_ROW_INTS = tl.constexpr(16)
DONE = tl.constexpr(0)
TOTAL = tl.constexpr(1)
CUT = tl.constexpr(2)
FIRST_BIN = tl.constexpr(3)
LAST_BIN = tl.constexpr(4)
REMAINING = tl.constexpr(5)
NUM_CANDIDATES = tl.constexpr(6)
ABOVE = tl.constexpr(7)
ABOVE_WEIGHT = tl.constexpr(8)
BAD = tl.constexpr(9)
#: What each cut measures: 0 nothing (no cut), 1 ids, 2 weight.
MEASURE = tl.constexpr(10)
#: Whether every id that may stay is gathered, so that the row ends in the first cut.
IS_WHOLE = tl.constexpr(11)
COARSE = tl.constexpr(64)
PAIR_COUNT_SHIFT = tl.constexpr(48)
