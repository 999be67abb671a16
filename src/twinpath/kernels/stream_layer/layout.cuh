// How a layer's products are cut, what a launch is given, and how a program's shared memory is laid out. Macros: `layer.cu`.

constexpr int GROUPS = (ROWS + 63) / 64;
constexpr int CONSUMER_WARPS = 4 * GROUPS;
constexpr int CONSUMERS = CONSUMER_WARPS * 32;
constexpr int THREADS = CONSUMERS + 32;
constexpr int LINE = 128;
constexpr int MOST_STAGES = 16;
constexpr int NUM_PHASES = 4;

constexpr int larger(int a, int b) { return a > b ? a : b; }
constexpr int smaller(int a, int b) { return a < b ? a : b; }

struct Barriers {
  u64 full[NUM_PHASES][MOST_STAGES], empty[NUM_PHASES][MOST_STAGES];
  // The other program's sums have come; this program's results are stored; those of all programs are seen.
  u64 joined[NUM_PHASES], stored[NUM_PHASES], begun[NUM_PHASES];
};
constexpr int RING_BYTES = SHARED_BYTES - 1024 - (int)sizeof(Barriers);
// The end of the ring takes the other program's sums; only products that are not shared stream through it.
constexpr int ROOM_BYTES = CONSUMERS * larger(RESIDUAL_TILE, QKV_TILE);
constexpr int ROOM_AT = (RING_BYTES - ROOM_BYTES) / 1024 * 1024;

template <int NUMBER_, int TILE_, int SUMMED, int COLUMNS_, bool GATED_>
struct Product {
  static constexpr int NUMBER = NUMBER_, TILE = TILE_, COLUMNS = COLUMNS_;
  static constexpr bool GATED = GATED_;
  static constexpr int SPLITS = GATED ? 1 : 2;
  static constexpr int STEPS = SUMMED / 64 / SPLITS;
  static constexpr int WIDTH = GATED ? TILE / 2 : TILE;
  static constexpr int PROGRAMS = COLUMNS / WIDTH * SPLITS;
  static constexpr int WEIGHT_BYTES = TILE * LINE;
  // A stage: rows, then weights. Of 32 rows the tensor cores take 64: what follows are nobody's sums.
  static constexpr int STAGE_BYTES = ROWS * LINE + WEIGHT_BYTES;
  static constexpr int STAGES = smaller(smaller(MOST_STAGES, STEPS), (SPLITS > 1 ? ROOM_AT : RING_BYTES) / STAGE_BYTES);
  // Columns, and of a thread's sums how many, that one program brings to an end.
  static constexpr int OWN_WIDTH = WIDTH / SPLITS;
  static constexpr int OWN_SUMS = TILE / 2 / SPLITS;
  static_assert(SUMMED % (64 * SPLITS) == 0 && COLUMNS % WIDTH == 0, "tiles come out even");
  static_assert(STAGES >= 2, "too few stages");
  // Stages that do not lie where sums are joined.
  static constexpr int FREE = smaller(STAGES, ROOM_AT / STAGE_BYTES);

  static __device__ __forceinline__ bool takes_part() { return blockIdx.x < PROGRAMS; }
  static __device__ __forceinline__ int tile() { return blockIdx.x / SPLITS; }
  static __device__ __forceinline__ int first_step() { return blockIdx.x % SPLITS * STEPS; }
  // The parity of a stage's barrier when its last use is over.
  static __device__ __forceinline__ u32 last_parity(int stage) { return ((STEPS - stage + STAGES - 1) / STAGES - 1) & 1; }
};
using Attended = Product<0, RESIDUAL_TILE, HEADS_WIDTH, HIDDEN, false>;
using Gates = Product<1, GATE_TILE, HIDDEN, INNER, true>;
using Down = Product<2, RESIDUAL_TILE, INNER, HIDDEN, false>;
using Next = Product<3, QKV_TILE, HIDDEN, QKV_WIDTH, false>;
// Sums of squares of a row.
constexpr int PARTS = HIDDEN / Attended::OWN_WIDTH;
static_assert(PARTS % 16 == 0, "read as four times four");

struct Layer {
  const TensorMap *o, *gate_up, *down, *qkv;
  const TensorMap *attended_rows, *x_rows, *gated_rows;
  float* residual;
  u32 *x, *gated;
  float *projected, *squares;
  const float *mlp_norm, *next_norm;
  // How often programs have met, ever.
  u64* meetings;
  u64 num_rows;
  // Or this is the last layer.
  u64 has_next;
};

struct Memory {
  u32 ring, barriers;
  __device__ __forceinline__ u32 full(int phase, int stage) const { return barriers + 8 * (phase * MOST_STAGES + stage); }
  __device__ __forceinline__ u32 empty(int phase, int stage) const { return full(phase + NUM_PHASES, stage); }
  __device__ __forceinline__ u32 joined(int phase) const { return full(2 * NUM_PHASES, phase); }
  __device__ __forceinline__ u32 stored(int phase) const { return full(2 * NUM_PHASES, NUM_PHASES + phase); }
  __device__ __forceinline__ u32 begun(int phase) const { return full(2 * NUM_PHASES, 2 * NUM_PHASES + phase); }
};
