// Tables of `kernels/sampler/spec.py` as this kernel reads them, and what a block keeps in shared memory.
//
// Compiled for one vocabulary: VOCAB CLUSTER (blocks a row) THREADS ALIGNED (rows begin at 16 bytes) are macros.

constexpr int INVERSE_TEMPERATURE = 0, TOP_P = 1, MIN_WEIGHT = 2, REPETITION = 3, FREQUENCY = 4, PRESENCE = 5;
constexpr int NUM_FLOATS = 6;
constexpr int SEED = 0, TOP_K = 1, NUM_PROMPT = 2, MIN_TOKENS = 3, FLAGS = 4, NUM_TOP = 5;
constexpr int NUM_INTS = 6;
constexpr int HAS_PENALTIES = 1, HAS_BIAS = 2, HAS_STOPS = 4, IS_GREEDY = 8;
constexpr int OK = 0, NOT_FINITE = 1, ALL_MASKED = 2;
// A row of scores: the token's log-probability, those of the best ids, and these ids.
constexpr int MAX_TOP = 20, NUM_SCORES = 1 + 2 * MAX_TOP;

constexpr int WARPS = THREADS / 32;
constexpr int WORDS = (VOCAB + 31) / 32;
// Ids of one block, and of one thread: a whole number of 16-byte groups.
constexpr int SHARE = (VOCAB + CLUSTER - 1) / CLUSTER;
constexpr int ITEMS = (SHARE + 4 * THREADS - 1) / (4 * THREADS) * 4;
constexpr int CHUNK = ITEMS * THREADS;
// Groups of warps whose best ids bound the k-th best from below, and the most ids that are sorted at once.
constexpr int NUM_WARPS = CLUSTER * WARPS;
constexpr int GROUPS = NUM_WARPS < 128 ? NUM_WARPS : 128;
constexpr int MAX_FEW_K = GROUPS - GROUPS / 8;
constexpr int MAX_SORTED = THREADS;
// Of a list that blocks fill, each has a part of its own; the block that reads the scored list is not the one that draws.
constexpr int PART_KEYS = MAX_SORTED / CLUSTER;
constexpr int SCORER = CLUSTER - 1;
static_assert(THREADS % GROUPS == 0 && THREADS >= GROUPS, "a thread or more for each group");
// A histogram over log-probability, down to weight zero; each block adds up a part of it.
constexpr int PART_BINS = THREADS < 4096 / CLUSTER ? THREADS : 4096 / CLUSTER;
constexpr int NUM_BINS = PART_BINS * CLUSTER;
constexpr double BIN_SPAN = 24.5;

constexpr int ID_BITS = 20, ID_MASK = (1 << ID_BITS) - 1;
// Below every rank, and above every rank: a warp that saw NaN or infinity says so.
constexpr i64 LEAST = -(1ll << 62), BAD = 1ll << 62;

struct Args {
  const float* logits;
  u64 logits_stride;
  const int *row_slots, *row_positions, *row_masks;
  const double* floats;
  const i64* ints;
  int* history;
  u64 history_stride;
  int* counts;
  const double* bias;
  const u32 *biased, *stops, *allowed;
  int *tokens, *codes;
  double* scores;
};

// A row's settings.
struct Row {
  const float* logits;
  i64 slot;
  u64 seed;
  int index, position, mask, flags, top_k, num_top;
  double inverse_temperature, top_p, min_weight, repetition, frequency, presence;
  bool is_short;
};

struct Border {
  u64 before, weight_before;
  int bin;
};

struct Cut {
  i64 key;
  u64 weight;
};

// Ranks that every block found, in its part, and how many: more than a part holds are not there.
struct Found {
  i64 keys[MAX_SORTED];
  u32 nums[CLUSTER], num_own;
};

struct Shared {
  i64 maxima[NUM_WARPS], raw_maxima[NUM_WARPS];
  Found best, scored;
  i64 gathered[MAX_SORTED], sorted[MAX_SORTED];
  u64 weights[MAX_SORTED], kept_weight;
  u64 warp_sums[WARPS];
  // By block: sums that all add up alike; two sets, used in turn.
  u64 sums[2][CLUSTER];
  double exp_sums[CLUSTER];
  u64 part_weights[CLUSTER], part_counts[CLUSTER];
  Border border;
  Cut cut;
  int groups[2][GROUPS], thresholds[2];
  int token;
  u32 num_gathered;
  // Sums of weights as two words each, and how many ids.
  u32 low[NUM_BINS], high[NUM_BINS], counts[NUM_BINS];
  // Adjusted logits of this block's ids.
  alignas(16) float x[CHUNK];
};
