// One decode step of a whole model in one launch: one program per multiprocessor, each with a warp that streams weights
// and old keys and values through a ring in shared memory, in the order in which the other eight warps use them.
//
// The stream never waits for an activation: while the grid meets between two projections, the ring fills, so memory
// works on. What a projection sums: each warp one eighth of K, in order of K; then the eight in order. Nothing depends on
// the other rows of the batch or on which program is first.
//
// Compiled for one model and card: HIDDEN INTER HEADS KV_HEADS DIM VOCAB LAYERS SPLITS PAGE TILE_K STAGES IN_FLIGHT AHEAD
// B_MAX PROGRAMS WARPS WINDOWS EPS SCALE (attention scale times log2 e) GELU HEAD_NORMS QKV_BIAS are macros.

constexpr int GROUP = HEADS / KV_HEADS;
constexpr int Q_ROWS = HEADS * DIM;
constexpr int QKV_ROWS = (HEADS + 2 * KV_HEADS) * DIM;
constexpr int ROWS = 16;
constexpr int COLUMNS = 8;
constexpr int STAGE_BYTES = ROWS * TILE_K * 2;
// A stage lies as [TILE_K / 64][ROWS][64 values of 16 bits], the 16-byte pieces of each 128-byte line swapped by its row
// (the copy's 128-byte swizzle), so that eight rows can be read at one column without meeting in a bank.
constexpr int LINE = 128;
// Blocks of 32 values that one warp takes of a stage's row.
constexpr int BLOCKS = TILE_K / CONSUMER_WARPS / 32;
constexpr int PARTS = HIDDEN / ROWS;
constexpr int SUM_PITCH = 20;
constexpr int SUM_FLOATS = CONSUMER_WARPS * COLUMNS * SUM_PITCH;
// Attention: a warp takes eight tokens at a time.
constexpr int HEAD_LANES = DIM / 8;
constexpr int PAGE_BYTES = PAGE * DIM * 2;
constexpr int STAGE_PAGES = STAGE_BYTES / 2 / PAGE_BYTES;
constexpr int STAGE_TOKENS = STAGE_PAGES * PAGE;
constexpr int VALUE_OFFSET = STAGE_PAGES * PAGE_BYTES;
// Tiles that are finished with one meeting of the warps.
constexpr int MAX_TOGETHER = 2;
// Warps that have eight tokens of a stage.
constexpr int ATTENTION_WARPS = STAGE_TOKENS / 8 < CONSUMER_WARPS ? STAGE_TOKENS / 8 : CONSUMER_WARPS;
// Splits that one program prepares together: a warp each.
constexpr int TASKS = 8;

struct TensorMap {
  u64 opaque[16];
};

struct Layer {
  const float *qkv_bias, *mlp_gain, *next_gain, *q_gain, *k_gain, *rope;
  u16 *k, *v;
  u64 window;
};

struct LayerMaps {
  TensorMap qkv, o, gate_up, down, k, v;
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
  u64 batch, max_pages;
};

struct AttentionScratch {
  alignas(16) u16 q[TASKS][GROUP * DIM], k[TASKS][DIM], v[TASKS][DIM];
  float sums[ATTENTION_WARPS][GROUP * DIM], largest[ATTENTION_WARPS][GROUP], total[ATTENTION_WARPS][GROUP];
};

struct Shared {
  u64 full[STAGES], empty[STAGES];
  float inverse_rms[COLUMNS];
  u32 to_merge;
  // Parts of the step (five a layer, then the head) whose input the consumers have.
  volatile int parts_begun;
  // What every phase reads first; after the grid has met, global memory is a microsecond away.
  int positions[COLUMNS], borders[WINDOWS][COLUMNS][SPLITS + 1];
  Layer layers[LAYERS];
  union {
    alignas(16) float sums[MAX_TOGETHER][SUM_FLOATS];
    AttentionScratch attention;
  };
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
  // x of all columns fits in registers: one load per projection, not per tile.
  static constexpr bool HELD = STEPS * BLOCKS <= 16;
  // Otherwise a program walks through K once for all its tiles, so that x is read once.
  static constexpr int TURNS = (TILES + PROGRAMS - 1) / PROGRAMS;
  static constexpr int TOGETHER = HELD || TURNS > MAX_TOGETHER ? 1 : TURNS;
};
