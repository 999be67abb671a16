// One decode step of a whole model in one launch: one program per multiprocessor, in clusters, each with a warp that
// streams weights and old keys and values through a ring in shared memory, in the order in which the other eight warps
// use them.
//
// The stream never waits for an activation: while the grid meets between two projections, the ring fills, so memory
// works on. A cluster shares a weight tile along K: each program reads its slice of the activations only, and the
// slices' sums meet in the shared memory of the program that finishes the tile. The same for attention: a cluster shares
// the context of one key head. What a sum adds: each warp its part of a slice, in order of K; then warps and programs in
// order. Nothing depends on the other rows of the batch or on which program is first.
//
// Compiled for one model and card: HIDDEN INTER HEADS KV_HEADS DIM VOCAB LAYERS SPLITS BORDERS PAGE TILE_K STAGES
// IN_FLIGHT AHEAD B_MAX CLUSTER WARPS COLUMN_WARPS COLUMN_BLOCKS WINDOWS EPS SCALE (attention scale times log2 e) GELU
// HEAD_NORMS QKV_BIAS SHARED_BYTES RANK WORLD are macros.

constexpr int GROUP = HEADS / KV_HEADS;
constexpr int Q_ROWS = HEADS * DIM;
constexpr int QKV_ROWS = (HEADS + 2 * KV_HEADS) * DIM;
constexpr int ROWS = 16;
// Rows of the batch: column warps side by side, each with blocks of eight.
constexpr int COLUMNS = 8 * COLUMN_BLOCKS * COLUMN_WARPS;
constexpr int K_WARPS = CONSUMER_WARPS / COLUMN_WARPS;
constexpr int STAGE_BYTES = ROWS * TILE_K * 2;
// A stage lies as [TILE_K / 64][ROWS][64 values of 16 bits], the 16-byte pieces of each 128-byte line swapped by its row
// (the copy's 128-byte swizzle), so that eight rows can be read at one column without meeting in a bank.
constexpr int LINE = 128;
// Blocks of 32 values that one warp takes of a stage's row.
constexpr int BLOCKS = TILE_K / K_WARPS / 32;
constexpr int PARTS = HIDDEN / ROWS;
constexpr int SUM_PITCH = 20;
constexpr int SUM_FLOATS = K_WARPS * COLUMNS * SUM_PITCH;
constexpr int TILE_VALUES = ROWS * COLUMNS;
// Attention: tokens that a warp takes at a time.
constexpr int WARP_TOKENS = 16;
constexpr int HEAD_LANES = DIM / 8;
constexpr int PAGE_BYTES = PAGE * DIM * 2;
constexpr int STAGE_PAGES = STAGE_BYTES / 2 / PAGE_BYTES;
constexpr int STAGE_TOKENS = STAGE_PAGES * PAGE;
// A page of a stage: keys, then values.
constexpr int VALUE_OFFSET = PAGE_BYTES;
constexpr int PAIR_BYTES = 2 * PAGE_BYTES;
// Warps that share a stage's tokens; the next stage goes to the next so many.
constexpr int STAGE_WARPS = STAGE_TOKENS / WARP_TOKENS < CONSUMER_WARPS ? STAGE_TOKENS / WARP_TOKENS : CONSUMER_WARPS;
// Splits that one cluster prepares together: a warp each.
constexpr int TASKS = 4;
// Values of one task's result that one program of the cluster merges.
constexpr int PART_VALUES = GROUP * DIM / CLUSTER;
// Registers (of 16 bytes) that may hold x.
constexpr int MAX_HELD = 16;
// Sets of CLUSTER tiles that are summed together where a program's x does not fit.
constexpr int MAX_SETS = (HIDDEN > INTER ? HIDDEN : INTER) / TILE_K <= CLUSTER * (MAX_HELD / (BLOCKS * COLUMN_BLOCKS)) ? 1 : 2;

struct TensorMap {
  u64 opaque[16];
};

struct Layer {
  const float *qkv_bias, *mlp_gain, *next_gain, *q_gain, *k_gain, *rope;
  u16 *k, *v;
  u64 window;
};

struct LayerMaps {
  TensorMap qkv, o, gate_up, down, pages;
};

struct Step {
  const Layer* layers;
  const LayerMaps* maps;
  const TensorMap* head;
  const int *block_tables, *positions, *borders;
  float *residual, *projected, *attn_squares, *mlp_squares, *partial, *stats, *logits, *best;
  u16 *scaled, *attended, *gated;
  int* best_id;
  u32 *arrivals, *meetings;
  // Addresses of all ranks' inboxes, and the tag of the last message: see `send_to_ranks`.
  const u64* inboxes;
  u32* epoch;
  u64 batch, max_pages, clusters;
};

struct AttentionScratch {
  alignas(16) u16 q[TASKS][GROUP * DIM], k[TASKS][DIM], v[TASKS][DIM];
  float sums[CONSUMER_WARPS][GROUP * DIM], largest[CONSUMER_WARPS][GROUP], total[CONSUMER_WARPS][GROUP];
};

// What one program of the cluster sends another about a task: sums of the values that it merges; (largest, total) pairs.
struct AttentionMessage {
  alignas(16) float values[PART_VALUES];
  float stats[GROUP][2];
};
constexpr u32 TASK_BYTES = CLUSTER * (PART_VALUES * 4 + GROUP * 8);
constexpr u32 TILE_BYTES = CLUSTER * TILE_VALUES * 4;

struct Shared {
  u64 full[STAGES], empty[STAGES];
  // Messages from the cluster's programs have come: for tiles, for tasks; two slots in turn.
  u64 tile_bars[2], task_bars[2];
  float squares[CONSUMER_WARPS][COLUMNS];
  u32 to_merge;
  // Parts of the step (five a layer, then the head) whose input the consumers have.
  volatile int parts_begun;
  // What every phase reads first; after the grid has met, global memory is a microsecond away.
  int positions[COLUMNS], borders[WINDOWS][COLUMNS][SPLITS + 1];
  Layer layers[LAYERS];
  union {
    struct {
      alignas(16) float sums[MAX_SETS * CLUSTER][SUM_FLOATS];
      alignas(16) float received[2][CLUSTER][TILE_VALUES];
    };
    struct {
      AttentionScratch attention;
      AttentionMessage messages[2][CLUSTER];
    };
  };
};
static_assert(sizeof(Shared) + STAGES * STAGE_BYTES <= SHARED_BYTES, "the ring is too long");

// How many messages this program has taken, of each kind.
struct Turns {
  u32 tiles = 0, tasks = 0;
};

// Tiles are dealt to the clusters round and round, from one projection to the next, so that none has the more of each.
struct Dealer {
  int next = 0;
  // This cluster's first of `num` tiles.
  __device__ __forceinline__ int deal(int num, int clusters) {
    int first = (int)(blockIdx.x / CLUSTER) - next;
    next = (next + num) % clusters;
    return first < 0 ? first + clusters : first;
  }
};

struct Ring {
  u32 stages, full, empty;
  int index = 0, issued = 0, part = 0;
  u32 parity = 0;
  __device__ __forceinline__ u32 stage() const { return stages + index * STAGE_BYTES; }
  __device__ __forceinline__ u32 full_bar() const { return full + index * 8; }
  __device__ __forceinline__ u32 empty_bar() const { return empty + index * 8; }
  __device__ __forceinline__ void advance() {
    if (++index == STAGES) {
      index = 0;
      parity ^= 1;
    }
  }
};

enum Kind { QKV, O, GATE_UP, DOWN, HEAD };

template <Kind kind>
struct Projection {
  static constexpr int K = kind == O ? Q_ROWS : kind == DOWN ? INTER : HIDDEN;
  static constexpr int N = kind == QKV ? QKV_ROWS : kind == GATE_UP ? 2 * INTER : kind == HEAD ? VOCAB : HIDDEN;
  static constexpr int TILES = N / ROWS;
  static constexpr int STEPS = K / TILE_K;
  // K does not divide evenly: a program takes another slice of the cluster's next tile, and its x is all of K.
  static constexpr bool ROTATES = STEPS % CLUSTER != 0 && STEPS * BLOCKS * COLUMN_BLOCKS <= MAX_HELD;
  // Steps of x that a program needs, at most.
  static constexpr int MOST = ROTATES ? STEPS : (STEPS + CLUSTER - 1) / CLUSTER;
  // x of all columns fits in registers: one load per projection, not per tile.
  static constexpr bool HELD = MOST * BLOCKS * COLUMN_BLOCKS <= MAX_HELD;
  // Sets of CLUSTER tiles that are summed before any is finished; more than one so that x is read less often.
  static constexpr int SETS = HELD ? 1 : MAX_SETS;
  // Steps of x that a thread holds.
  static constexpr int DEPTH = HELD ? MOST : COLUMN_BLOCKS == 1 ? 3 : 2;
  static constexpr int TOGETHER = SETS * CLUSTER;
  static __device__ __forceinline__ int slice(int rank) { return STEPS * rank / CLUSTER; }
  // This program's slice of tile `j` of a set: first step and past the last.
  static __device__ __forceinline__ int2 steps(int j) {
    int part = ROTATES ? (cluster_rank() + j) % CLUSTER : cluster_rank();
    return make_int2(slice(part), slice(part + 1));
  }
  // First step of this program's x, and how many it needs.
  static __device__ __forceinline__ int begin() { return ROTATES ? 0 : steps(0).x; }
  static __device__ __forceinline__ int count() { return ROTATES ? STEPS : steps(0).y - steps(0).x; }
};
