// x [ROWS, K] times a tile of weights [TILE, K], one tile and one slice of K for each program, `wgmma` fed by the copy
// engine. A few rows need little arithmetic for each weight, so that memory is what counts: weights of the first stages
// are asked for before the kernel waits for the one before it: memory works while the rows between two products are
// normed and attended.
//
// With SPLITS = 2 a cluster of two shares a tile, half of K each; each sends the other half of its sums. With GATED a
// tile is TILE / 2 gates and their ups, and the result is act(gate) * up in bfloat16; else it is float32.
//
// A row's sums have one order whatever the other rows are and however many: stage after stage, then slice and slice.
//
// Compiled for one shape and card: ROWS (a multiple of 64) TILE STEPS (K / 64) SPLITS (1 or 2) COLUMNS (of the result)
// TILES STAGES GATED GELU SHARED_BYTES are macros. `multiply_tile` stands before this text: its operands depend on TILE.

constexpr int GROUPS = ROWS / 64;
constexpr int CONSUMER_WARPS = 4 * GROUPS;
constexpr int THREADS = (CONSUMER_WARPS + 1) * 32;
constexpr int LINE = 128;
constexpr int WEIGHT_BYTES = TILE * LINE;
constexpr int ROW_BYTES = ROWS * LINE;
constexpr int STAGE_BYTES = WEIGHT_BYTES + ROW_BYTES;
constexpr int CONSUMERS = CONSUMER_WARPS * 32;
// Columns of the result of one tile, and how many of a thread's sums one program of the cluster brings to an end.
constexpr int WIDTH = GATED ? TILE / 2 : TILE;
constexpr int OWN_SUMS = TILE / 2 / SPLITS;

struct Product {
  const TensorMap *weights, *rows;
  void* out;
  // Rows of `out` that exist.
  u64 num_rows;
};

struct Barriers {
  u64 full[STAGES], empty[STAGES], joined;
};
static_assert(STAGES * STAGE_BYTES + (int)sizeof(Barriers) + 1024 <= SHARED_BYTES, "too many stages");
static_assert(SPLITS == 1 || CONSUMERS * OWN_SUMS * 4 <= STAGES * STAGE_BYTES, "no room for the other program's sums");

__device__ __forceinline__ void copy_weights(const Product& p, u32 stage, int tile, int step, u32 bar, u64 policy) {
  copy_box(stage, p.weights, step * 64, tile * WIDTH, bar, policy);
  if constexpr (GATED) copy_box(stage + WEIGHT_BYTES / 2, p.weights, step * 64, COLUMNS + tile * WIDTH, bar, policy);
}

__device__ __forceinline__ void produce(const Product& p, u32 stages, u32 full, u32 empty, int tile, int begin, int end) {
  u64 policy = read_once_policy();
  int ahead = min(STAGES, end - begin);
#pragma unroll 1
  for (int i = 0; i < ahead; ++i) {
    barrier_expect(full + 8 * i, STAGE_BYTES);
    copy_weights(p, stages + i * STAGE_BYTES, tile, begin + i, full + 8 * i, policy);
  }
  await_previous_kernel();
#pragma unroll 1
  for (int i = 0; i < ahead; ++i) copy_box(stages + i * STAGE_BYTES + WEIGHT_BYTES, p.rows, (begin + i) * 64, 0, full + 8 * i);
  int index = 0;
  u32 parity = 0;
#pragma unroll 1
  for (int step = begin + ahead; step < end; ++step) {
    barrier_wait(empty + 8 * index, parity);
    barrier_expect(full + 8 * index, STAGE_BYTES);
    copy_weights(p, stages + index * STAGE_BYTES, tile, step, full + 8 * index, policy);
    copy_box(stages + index * STAGE_BYTES + WEIGHT_BYTES, p.rows, step * 64, 0, full + 8 * index);
    if (++index == STAGES) {
      index = 0;
      parity ^= 1;
    }
  }
}

__device__ __forceinline__ void consume(float (&sums)[TILE / 2], u32 stages, u32 full, u32 empty, int num_steps) {
  int group = threadIdx.x / 128, index = 0, before = 0;
  u32 parity = 0;
#pragma unroll 1
  for (int step = 0; step < num_steps; ++step) {
    barrier_wait(full + 8 * index, parity);
    u32 stage = stages + index * STAGE_BYTES;
    u64 weights = matrix_at(stage), rows = matrix_at(stage + WEIGHT_BYTES + group * 64 * LINE);
    multiply_fence();
#pragma unroll
    for (int k = 0; k < 4; ++k) multiply_tile(sums, rows + 2 * k, weights + 2 * k, step + k > 0);
    multiply_commit();
    multiply_wait<1>();
    if (step > 0 && threadIdx.x % 32 == 0) barrier_arrive(empty + 8 * before);
    before = index;
    if (++index == STAGES) {
      index = 0;
      parity ^= 1;
    }
  }
  multiply_wait<0>();
}

__device__ __forceinline__ float activated(float gate) {
  // 0.5 x (1 + tanh(z)) is x * sigmoid(2 z). Source: Hendrycks and Gimpel 2016, section 2.
  float z = GELU ? 1.5957691216057308f * (gate + 0.044715f * gate * gate * gate) : gate;
  return gate / (1.0f + __expf(-z));
}

// The cluster's programs add up their slices: each keeps one half of a thread's sums and sends the other.
__device__ __forceinline__ void join(float (&sums)[TILE / 2], u32 room, u32 joined) {
  everyone_meets();  // The other's stages are read; there is room in them.
  bool is_first = cluster_rank() == 0;
#pragma unroll
  for (int i = 0; i < OWN_SUMS; i += 4) {
    u32 at = room + (i / 4 * CONSUMERS + threadIdx.x) * 16;
    int last = OWN_SUMS + i;
    send_four(at, is_first ? sums[last] : sums[i], is_first ? sums[last + 1] : sums[i + 1],
              is_first ? sums[last + 2] : sums[i + 2], is_first ? sums[last + 3] : sums[i + 3], joined);
  }
  barrier_wait(joined, 0);
#pragma unroll
  for (int i = 0; i < OWN_SUMS; i += 4) {
    float other[4];
    load_shared(other, room + (i / 4 * CONSUMERS + threadIdx.x) * 16);
#pragma unroll
    for (int j = 0; j < 4; ++j) sums[i + j] = (is_first ? sums[i + j] : sums[OWN_SUMS + i + j]) + other[j];
  }
}

__device__ __forceinline__ void store(const Product& p, const float (&sums)[TILE / 2], int tile) {
  constexpr int OWN_WIDTH = WIDTH / SPLITS;
  int lane = threadIdx.x % 32;
  int first_row = threadIdx.x / 32 * 16 + lane / 4;
  int first_column = tile * WIDTH + (SPLITS > 1 ? cluster_rank() * OWN_WIDTH : 0) + lane % 4 * 2;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    u64 row = first_row + 8 * half;
    if (row >= p.num_rows) continue;
#pragma unroll
    for (int block = 0; block < OWN_WIDTH / 8; ++block) {
      int column = first_column + block * 8, at = block * 4 + half * 2;
      if (TILES * WIDTH > COLUMNS && column >= COLUMNS) continue;
      float low = sums[at], high = sums[at + 1];
      u64 pair = (row * COLUMNS + column) / 2;
      if constexpr (GATED)
        ((u32*)p.out)[pair] = to_bf16_pair(activated(low) * sums[at + WIDTH / 2], activated(high) * sums[at + 1 + WIDTH / 2]);
      else
        ((float2*)p.out)[pair] = make_float2(low, high);
    }
  }
}

extern "C" __global__ void __launch_bounds__(THREADS, 1) __cluster_dims__(SPLITS, 1, 1)
    stream_linear(const __grid_constant__ Product p) {
  extern __shared__ unsigned char memory[];
  // The swizzle of a stage counts from multiples of 1,024.
  u32 stages = (shared_address(memory) + 1023) / 1024 * 1024;
  u32 full = stages + STAGES * STAGE_BYTES, empty = full + 8 * STAGES, joined = empty + 8 * STAGES;
  int tile = blockIdx.x / SPLITS, split = blockIdx.x % SPLITS;
  int begin = STEPS * split / SPLITS, end = STEPS * (split + 1) / SPLITS;
  start_next_kernel();
  if (threadIdx.x == 0) {
    for (int i = 0; i < STAGES; ++i) {
      barrier_init(full + 8 * i, 1);
      barrier_init(empty + 8 * i, CONSUMER_WARPS);
    }
    barrier_init(joined, 1);
    barriers_are_seen();
    barrier_expect(joined, CONSUMERS * OWN_SUMS * 4);
  }
  __syncthreads();
  float sums[TILE / 2];
  if (threadIdx.x / 32 == CONSUMER_WARPS) {
    if (threadIdx.x % 32 == 0) produce(p, stages, full, empty, tile, begin, end);
    __syncwarp();
    if constexpr (SPLITS > 1) everyone_meets();
  } else {
    consume(sums, stages, full, empty, end - begin);
    if constexpr (SPLITS > 1) join(sums, stages, joined);
    store(p, sums, tile);
  }
}
