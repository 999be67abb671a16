// One decode step of a whole model in one launch: one program per multiprocessor, each with a warp that streams weights
// and old keys and values through a ring in shared memory, in the order in which the other eight warps use them.
//
// The stream never waits for an activation: while the grid meets between two projections, the ring fills, so memory
// works on. What a projection sums: each warp one eighth of K, in order of K; then the eight in order. Nothing depends on
// the other rows of the batch or on which program is first.
//
// Compiled for one model: HIDDEN INTER HEADS KV_HEADS DIM VOCAB LAYERS SPLITS PAGE TILE_K STAGES B_MAX EPS SCALE
// (attention scale times log2 e) GELU HEAD_NORMS QKV_BIAS are macros.

constexpr int GROUP = HEADS / KV_HEADS;
constexpr int Q_ROWS = HEADS * DIM;
constexpr int QKV_ROWS = (HEADS + 2 * KV_HEADS) * DIM;
constexpr int ROWS = 16;
constexpr int COLUMNS = 8;
constexpr int ROW_BYTES = TILE_K * 2;
// 64 bytes more than a multiple of 128: two neighbouring rows meet in no bank.
constexpr int ROW_PITCH = ROW_BYTES + 64;
constexpr int STAGE_BYTES = ROWS * ROW_PITCH;
// Blocks of 32 values that one warp takes of a stage's row.
constexpr int BLOCKS = TILE_K / CONSUMER_WARPS / 32;
constexpr int PARTS = HIDDEN / ROWS;
constexpr int SUM_PITCH = 20;
constexpr int SUMS = CONSUMER_WARPS * COLUMNS * SUM_PITCH;
// Attention: eight values of a head per lane.
constexpr int HEAD_LANES = DIM / 8;
constexpr int TOKEN_GROUPS = CONSUMERS / HEAD_LANES;
constexpr int STAGE_TOKENS = TILE_K * 8 / DIM;
constexpr int STAGE_PAGES = STAGE_TOKENS / PAGE;
constexpr int GROUP_TOKENS = STAGE_TOKENS / TOKEN_GROUPS;
constexpr int VALUE_OFFSET = STAGE_TOKENS * DIM * 2;
constexpr int MERGE_FLOATS = CONSUMER_WARPS * GROUP * (DIM + 2);
constexpr int SCRATCH_FLOATS = MERGE_FLOATS > 2 * SUMS ? MERGE_FLOATS : 2 * SUMS;

struct Layer {
  const u16 *qkv, *o, *gate_up, *down;
  const float *qkv_bias, *mlp_gain, *next_gain, *q_gain, *k_gain, *rope;
  u16 *k, *v;
  const int* borders;
};

struct Step {
  const Layer* layers;
  const u16* head;
  const int *block_tables, *positions;
  float *residual, *projected, *attn_squares, *mlp_squares, *partial, *stats, *logits, *best;
  u16 *scaled, *attended, *gated;
  int* best_id;
  u32 *arrivals, *meetings;
  u64 batch, max_pages;
};

struct Shared {
  u64 full[STAGES], empty[STAGES];
  float inverse_rms[COLUMNS];
  u32 last;
  alignas(16) float scratch[SCRATCH_FLOATS];
};

struct Ring {
  u32 stages, full, empty;
  int index = 0;
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
};

// ---- The stream ----

// Wait for a free stage and say how many bytes will come; every lane returns with the stage usable.
__device__ __forceinline__ void open_stage(Ring& ring, int lane, u32 bytes) {
  if (lane == 0) {
    barrier_wait(ring.empty_bar(), ring.parity ^ 1);
    barrier_expect(ring.full_bar(), bytes);
  }
  __syncwarp();
}

template <Kind kind>
__device__ void stream_weights(Ring& ring, const u16* weights, int lane, u64 policy) {
  using P = Projection<kind>;
  for (int tile = blockIdx.x; tile < P::TILES; tile += gridDim.x) {
    // Rows of one tile: eight gates and their eight ups, or sixteen neighbours.
    int row = kind == GATE_UP ? tile * 8 + lane % 8 + (lane < 8 ? 0 : INTER) : tile * ROWS + lane;
    const u16* from = weights + (u64)row * P::K;
    for (int step = 0; step < P::STEPS; ++step) {
      open_stage(ring, lane, ROWS * ROW_BYTES);
      if (lane < ROWS)
        copy_bulk(ring.stage() + lane * ROW_PITCH, from + step * TILE_K, ROW_BYTES, ring.full_bar(), policy);
      ring.advance();
    }
  }
}

struct Task {
  int row, head, begin, end, first_page, num_pages;
};

// False: this split of this row's head is empty.
__device__ __forceinline__ bool read_task(int index, const int* borders, Task& task) {
  int split = index % SPLITS;
  task.head = index / SPLITS % KV_HEADS;
  task.row = index / (SPLITS * KV_HEADS);
  task.begin = borders[task.row * (SPLITS + 1) + split];
  task.end = borders[task.row * (SPLITS + 1) + split + 1];
  task.first_page = task.begin / PAGE;
  task.num_pages = (task.end + PAGE - 1) / PAGE - task.first_page;
  return task.begin < task.end;
}

__device__ void stream_context(Ring& ring, const Step& step, const Layer& layer, int lane, u64 policy) {
  constexpr u32 bytes = PAGE * DIM * 2;
  int num_tasks = (int)step.batch * KV_HEADS * SPLITS;
  for (int index = blockIdx.x; index < num_tasks; index += gridDim.x) {
    Task task;
    if (!read_task(index, layer.borders, task)) continue;
    const int* table = step.block_tables + task.row * step.max_pages + task.first_page;
    for (int done = 0; done < task.num_pages; done += STAGE_PAGES) {
      int num = min(STAGE_PAGES, task.num_pages - done);
      open_stage(ring, lane, 2 * num * bytes);
      if (lane < 2 * num) {
        int page = lane % num;
        u64 offset = ((u64)table[done + page] * KV_HEADS + task.head) * PAGE * DIM;
        u32 to = ring.stage() + page * bytes + (lane < num ? 0 : VALUE_OFFSET);
        copy_bulk(to, (lane < num ? layer.k : layer.v) + offset, bytes, ring.full_bar(), policy);
      }
      ring.advance();
    }
  }
}

__device__ void stream_step(Ring ring, const Step& step, int lane) {
  u64 policy = read_once_policy();
  for (int i = 0; i < LAYERS; ++i) {
    const Layer& layer = step.layers[i];
    stream_weights<QKV>(ring, layer.qkv, lane, policy);
    stream_context(ring, step, layer, lane, policy);
    stream_weights<O>(ring, layer.o, lane, policy);
    stream_weights<GATE_UP>(ring, layer.gate_up, lane, policy);
    stream_weights<DOWN>(ring, layer.down, lane, policy);
  }
  stream_weights<HEAD>(ring, step.head, lane, policy);
}

// ---- Projections ----

// This thread's values of x for one step: column lane / 4, eight values of each block.
__device__ __forceinline__ void load_columns(uint4 (&to)[BLOCKS], const u16* x, int k, int width, int batch) {
  int warp = threadIdx.x / 32, lane = threadIdx.x % 32, column = lane / 4;
#pragma unroll
  for (int i = 0; i < BLOCKS; ++i) {
    u64 at = (u64)column * width + k + warp * (TILE_K / CONSUMER_WARPS) + i * 32 + lane % 4 * 8;
    to[i] = column < batch ? load_fresh((const uint4*)(x + at)) : make_uint4(0, 0, 0, 0);
  }
}

// One stage: sums += its 16 rows times x. The order of K within a block is permuted alike in both operands, so that a
// thread's eight values are neighbours in memory.
__device__ __forceinline__ void multiply_stage(Ring& ring, float (&sums)[4], const uint4* x) {
  int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  barrier_wait(ring.full_bar(), ring.parity);
  u32 at = ring.stage() + lane / 4 * ROW_PITCH + warp * (ROW_BYTES / CONSUMER_WARPS) + lane % 4 * 16;
  uint4 upper[BLOCKS], lower[BLOCKS];
#pragma unroll
  for (int i = 0; i < BLOCKS; ++i) {
    upper[i] = load_shared(at + i * 64);
    lower[i] = load_shared(at + 8 * ROW_PITCH + i * 64);
  }
#pragma unroll
  for (int i = 0; i < BLOCKS; ++i) {
    multiply(sums, upper[i].x, lower[i].x, upper[i].y, lower[i].y, x[i].x, x[i].y);
    multiply(sums, upper[i].z, lower[i].z, upper[i].w, lower[i].w, x[i].z, x[i].w);
  }
  __syncwarp();
  if (lane == 0) barrier_arrive(ring.empty_bar());
  ring.advance();
}

// Leave this warp's sums where `total` finds them, [column][row].
__device__ __forceinline__ void leave_sums(float* scratch, const float (&sums)[4]) {
  int lane = threadIdx.x % 32;
  float* at = scratch + threadIdx.x / 32 * (COLUMNS * SUM_PITCH) + lane % 4 * 2 * SUM_PITCH + lane / 4;
  at[0] = sums[0];
  at[SUM_PITCH] = sums[1];
  at[8] = sums[2];
  at[SUM_PITCH + 8] = sums[3];
}
__device__ __forceinline__ float total(const float* scratch, int column, int row) {
  float sum = 0;
#pragma unroll
  for (int warp = 0; warp < CONSUMER_WARPS; ++warp) sum += scratch[(warp * COLUMNS + column) * SUM_PITCH + row];
  return sum;
}

// Warp w: the inverse RMS of column w, from partial sums of squares in a fixed order.
__device__ __forceinline__ void find_inverse_rms(Shared& shared, const float* squares, int batch) {
  int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  if (warp >= batch) return;
  float sum = 0;
#pragma unroll
  for (int part = lane; part < PARTS; part += 32) sum += load_fresh(squares + part * B_MAX + warp);
#pragma unroll
  for (int offset = 16; offset > 0; offset /= 2) sum += __shfl_xor_sync(~0u, sum, offset);
  if (lane == 0) shared.inverse_rms[warp] = rsqrtf(sum / HIDDEN + EPS);
}

__device__ __forceinline__ float activate(float x) {
#if GELU
  float u = 0.7978845608028654f * (x + 0.044715f * x * x * x);
  return x / (1.0f + power_of_two(-2.0f * 1.4426950408889634f * u));
#else
  return x / (1.0f + power_of_two(-1.4426950408889634f * x));
#endif
}

// residual += y, and what the next norm needs of it.
__device__ __forceinline__ void add_to_residual(
    const Step& step, const float* gain, float* squares, int tile, int column, int row, float y) {
  int at = column * HIDDEN + tile * ROWS + row;
  float square = 0;
  if (column < step.batch) {
    float residual = load_fresh(step.residual + at) + y;
    step.residual[at] = residual;
    step.scaled[at] = to_bf16(residual * gain[tile * ROWS + row]);
    square = residual * residual;
  }
#pragma unroll
  for (int offset = 8; offset > 0; offset /= 2) square += __shfl_xor_sync(~0u, square, offset);
  if (row == 0 && column < step.batch) squares[tile * B_MAX + column] = square;
}

struct Best {
  float value;
  int id;
};

// The best of 16 rows of one column, the lowest id among equal ones.
__device__ __forceinline__ void keep_best(Best& best, float value, int id) {
#pragma unroll
  for (int offset = 8; offset > 0; offset /= 2) {
    float other = __shfl_xor_sync(~0u, value, offset);
    int other_id = __shfl_xor_sync(~0u, id, offset);
    if (other > value || (other == value && other_id < id)) {
      value = other;
      id = other_id;
    }
  }
  if (value > best.value) best = {value, id};
}

template <Kind kind>
__device__ __forceinline__ void finish_tile(
    const Step& step, const Layer& layer, Shared& shared, const float* scratch, int tile, Best& best) {
  int column = threadIdx.x / ROWS, row = threadIdx.x % ROWS;
  if constexpr (kind == GATE_UP) {
    column = threadIdx.x / 8, row = threadIdx.x % 8;
    if (column >= step.batch) return;
    float scale = shared.inverse_rms[column];
    float y = activate(total(scratch, column, row) * scale) * (total(scratch, column, row + 8) * scale);
    step.gated[column * INTER + tile * 8 + row] = to_bf16(y);
  } else {
    if (threadIdx.x >= ROWS * COLUMNS) return;
    float y = total(scratch, column, row);
    int out = tile * ROWS + row;
    if constexpr (kind == O) add_to_residual(step, layer.mlp_gain, step.mlp_squares, tile, column, row, y);
    if constexpr (kind == DOWN) add_to_residual(step, layer.next_gain, step.attn_squares, tile, column, row, y);
    if constexpr (kind == QKV) {
      if (column < step.batch) {
        float bias = QKV_BIAS ? layer.qkv_bias[out] : 0.0f;
        step.projected[column * QKV_ROWS + out] = y * shared.inverse_rms[column] + bias;
      }
    }
    if constexpr (kind == HEAD) {
      y *= column < step.batch ? shared.inverse_rms[column] : 0.0f;
      if (column < step.batch) step.logits[(u64)column * VOCAB + out] = y;
      keep_best(best, y, out);
    }
  }
}

template <Kind kind>
__device__ void project(Ring& ring, const Step& step, const Layer& layer, Shared& shared, const u16* x) {
  using P = Projection<kind>;
  int batch = (int)step.batch;
  if constexpr (kind == QKV || kind == HEAD) find_inverse_rms(shared, step.attn_squares, batch);
  if constexpr (kind == GATE_UP) find_inverse_rms(shared, step.mlp_squares, batch);
  uint4 held[P::HELD ? P::STEPS : 3][BLOCKS];
#pragma unroll
  for (int i = 0; i < (P::HELD ? P::STEPS : 3); ++i) load_columns(held[i], x, i * TILE_K, P::K, batch);
  Best best = {NEGATIVE_INFINITY, 0x7fffffff};
  int turn = 0;
  for (int tile = blockIdx.x; tile < P::TILES; tile += gridDim.x, turn ^= 1) {
    float sums[4] = {0, 0, 0, 0};
    if constexpr (P::HELD) {
#pragma unroll
      for (int i = 0; i < P::STEPS; ++i) multiply_stage(ring, sums, held[i]);
    } else {
      for (int i = 0; i < P::STEPS; ++i) {
        multiply_stage(ring, sums, held[0]);
#pragma unroll
        for (int j = 0; j < BLOCKS; ++j) held[0][j] = held[1][j], held[1][j] = held[2][j];
        // Two steps ahead; past the end, the next tile's beginning.
        load_columns(held[2], x, (i + 3) % P::STEPS * TILE_K, P::K, batch);
      }
    }
    float* scratch = shared.scratch + turn * SUMS;
    leave_sums(scratch, sums);
    consumers_meet();
    finish_tile<kind>(step, layer, shared, scratch, tile, best);
  }
  if constexpr (kind == HEAD) {
    int column = threadIdx.x / ROWS;
    if (threadIdx.x % ROWS == 0 && column < batch) {
      step.best[column * gridDim.x + blockIdx.x] = best.value;
      step.best_id[column * gridDim.x + blockIdx.x] = best.id;
    }
  }
}

// ---- Attention ----

// Norm and rotation of this lane's eight values of one head; `at` points at the head.
__device__ __forceinline__ void load_head(
    float (&x)[8], const float* at, const float* gain, const float* rope, int position) {
  int lane = threadIdx.x % HEAD_LANES;
#pragma unroll
  for (int i = 0; i < 8; i += 4) {
    float4 four = load_fresh((const float4*)(at + lane * 8 + i));
    x[i] = four.x, x[i + 1] = four.y, x[i + 2] = four.z, x[i + 3] = four.w;
  }
#if HEAD_NORMS
  float square = 0;
#pragma unroll
  for (int i = 0; i < 8; ++i) square += x[i] * x[i];
#pragma unroll
  for (int offset = HEAD_LANES / 2; offset > 0; offset /= 2) square += __shfl_xor_sync(~0u, square, offset);
  float scale = rsqrtf(square / DIM + EPS);
#pragma unroll
  for (int i = 0; i < 8; ++i) x[i] *= scale * gain[lane * 8 + i];
#endif
  const float* angles = rope + (u64)position * DIM + lane % (HEAD_LANES / 2) * 8;
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    float other = __shfl_xor_sync(~0u, x[i], HEAD_LANES / 2);
    x[i] = x[i] * angles[i] + (lane < HEAD_LANES / 2 ? -other : other) * angles[DIM / 2 + i];
  }
}

__device__ __forceinline__ void unpack(float (&x)[8], uint4 v) {
  u32 words[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
  for (int i = 0; i < 4; ++i) x[2 * i] = low_half(words[i]), x[2 * i + 1] = high_half(words[i]);
}

// Running softmax of one token group: eight values per lane of each query head's sum.
struct Running {
  float sums[GROUP][8], largest[GROUP], total[GROUP];
};

__device__ __forceinline__ float safe(float largest) { return largest == NEGATIVE_INFINITY ? 0.0f : largest; }

// The new token's key and value, as they will stand in the cache (bf16).
struct NewToken {
  float k[8], v[8];
};

__device__ __forceinline__ void attend_stage(
    Running& run, const float (&q)[GROUP][8], u32 stage, int first_token, const Task& task, int position,
    const NewToken& fresh) {
  int lane = threadIdx.x % HEAD_LANES, group = threadIdx.x / HEAD_LANES;
  float scores[GROUP_TOKENS][GROUP];
#pragma unroll
  for (int i = 0; i < GROUP_TOKENS; ++i) {
    int local = i * TOKEN_GROUPS + group, token = first_token + local;
    float k[8];
    unpack(k, load_shared(stage + local * DIM * 2 + lane * 16));
#pragma unroll
    for (int j = 0; j < 8; ++j) k[j] = token == position ? fresh.k[j] : k[j];
#pragma unroll
    for (int g = 0; g < GROUP; ++g) {
      float score = 0;
#pragma unroll
      for (int j = 0; j < 8; ++j) score += q[g][j] * k[j];
#pragma unroll
      for (int offset = HEAD_LANES / 2; offset > 0; offset /= 2) score += __shfl_xor_sync(~0u, score, offset);
      scores[i][g] = token >= task.begin && token < task.end ? score * SCALE : NEGATIVE_INFINITY;
    }
  }
#pragma unroll
  for (int g = 0; g < GROUP; ++g) {
    float largest = run.largest[g];
#pragma unroll
    for (int i = 0; i < GROUP_TOKENS; ++i) largest = fmaxf(largest, scores[i][g]);
    float decay = power_of_two(safe(run.largest[g]) - safe(largest));
    run.total[g] *= decay;
#pragma unroll
    for (int j = 0; j < 8; ++j) run.sums[g][j] *= decay;
#pragma unroll
    for (int i = 0; i < GROUP_TOKENS; ++i) {
      scores[i][g] = power_of_two(scores[i][g] - safe(largest));
      run.total[g] += scores[i][g];
    }
    run.largest[g] = largest;
  }
#pragma unroll
  for (int i = 0; i < GROUP_TOKENS; ++i) {
    int local = i * TOKEN_GROUPS + group, token = first_token + local;
    bool inside = token >= task.begin && token < task.end;
    float v[8];
    unpack(v, load_shared(stage + VALUE_OFFSET + local * DIM * 2 + lane * 16));
#pragma unroll
    for (int j = 0; j < 8; ++j) v[j] = token == position ? fresh.v[j] : inside ? v[j] : 0.0f;
#pragma unroll
    for (int g = 0; g < GROUP; ++g)
#pragma unroll
      for (int j = 0; j < 8; ++j) run.sums[g][j] += scores[i][g] * v[j];
  }
}

// Token groups of one warp, then the warps in order: sums, largest and total of the split in shared memory.
__device__ __forceinline__ void gather_groups(Running& run, float* scratch) {
  int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
#pragma unroll
  for (int offset = HEAD_LANES; offset < 32; offset *= 2) {
#pragma unroll
    for (int g = 0; g < GROUP; ++g) {
      float other = __shfl_xor_sync(~0u, run.largest[g], offset), largest = fmaxf(run.largest[g], other);
      float mine = power_of_two(run.largest[g] - safe(largest)), its = power_of_two(other - safe(largest));
      run.total[g] = run.total[g] * mine + __shfl_xor_sync(~0u, run.total[g], offset) * its;
#pragma unroll
      for (int j = 0; j < 8; ++j)
        run.sums[g][j] = run.sums[g][j] * mine + __shfl_xor_sync(~0u, run.sums[g][j], offset) * its;
      run.largest[g] = largest;
    }
  }
  float* mine = scratch + warp * GROUP * (DIM + 2);
  if (lane < HEAD_LANES) {
#pragma unroll
    for (int g = 0; g < GROUP; ++g) {
#pragma unroll
      for (int j = 0; j < 8; ++j) mine[g * DIM + lane * 8 + j] = run.sums[g][j];
      if (lane == 0) mine[GROUP * DIM + g] = run.largest[g], mine[GROUP * DIM + GROUP + g] = run.total[g];
    }
  }
}

// The splits of one (row, head) in their order; splits not in `filled` hold nothing.
__device__ __forceinline__ void merge_splits(const Step& step, int pair, u32 filled, u16* out) {
  const float* partial = step.partial + (u64)pair * SPLITS * GROUP * DIM;
  const float* stats = step.stats + (u64)pair * SPLITS * 2 * GROUP;
  for (int e = threadIdx.x; e < GROUP * DIM; e += CONSUMERS) {
    int g = e / DIM;
    float values[SPLITS], largest = NEGATIVE_INFINITY, sum = 0, weights = 0;
    float tops[SPLITS], totals[SPLITS];
#pragma unroll
    for (int s = 0; s < SPLITS; ++s) {
      bool here = filled >> s & 1;
      values[s] = here ? load_fresh(partial + s * GROUP * DIM + e) : 0.0f;
      tops[s] = here ? load_fresh(stats + s * 2 * GROUP + g) : NEGATIVE_INFINITY;
      totals[s] = here ? load_fresh(stats + (s * 2 + 1) * GROUP + g) : 0.0f;
    }
#pragma unroll
    for (int s = 0; s < SPLITS; ++s) largest = fmaxf(largest, tops[s]);
#pragma unroll
    for (int s = 0; s < SPLITS; ++s) {
      float weight = power_of_two(tops[s] - largest);
      sum += values[s] * weight;
      weights += totals[s] * weight;
    }
    out[e] = to_bf16(sum / weights);
  }
}

__device__ __forceinline__ void finish_task(
    const Step& step, const Layer& layer, Shared& shared, const Task& task, int index) {
  int lane = threadIdx.x % 32, pair = task.row * KV_HEADS + task.head, split = index % SPLITS;
  const int* borders = layer.borders + task.row * (SPLITS + 1);
  bool here = lane < SPLITS && borders[min(lane, SPLITS - 1)] < borders[min(lane, SPLITS - 1) + 1];
  u32 filled = __ballot_sync(~0u, here);
  u16* out = step.attended + task.row * Q_ROWS + task.head * GROUP * DIM;
  float* partial = step.partial + ((u64)pair * SPLITS + split) * GROUP * DIM;
  float* stats = step.stats + ((u64)pair * SPLITS + split) * 2 * GROUP;
  consumers_meet();
  for (int e = threadIdx.x; e < GROUP * DIM; e += CONSUMERS) {
    int g = e / DIM;
    float largest = NEGATIVE_INFINITY, sum = 0, weights = 0;
    const float* tops = shared.scratch + GROUP * DIM + g;
#pragma unroll
    for (int w = 0; w < CONSUMER_WARPS; ++w) largest = fmaxf(largest, tops[w * GROUP * (DIM + 2)]);
#pragma unroll
    for (int w = 0; w < CONSUMER_WARPS; ++w) {
      float weight = power_of_two(tops[w * GROUP * (DIM + 2)] - largest);
      sum += shared.scratch[w * GROUP * (DIM + 2) + e] * weight;
      weights += tops[w * GROUP * (DIM + 2) + GROUP] * weight;
    }
    if (__popc(filled) == 1) {
      out[e] = to_bf16(sum / weights);
    } else {
      partial[e] = sum;
      if (e % DIM == 0) stats[g] = largest, stats[GROUP + g] = weights;
    }
  }
  consumers_meet();
  if (__popc(filled) == 1) return;
  if (threadIdx.x == 0) {
    u32 before;
    asm volatile("fence.acq_rel.gpu;\natom.acq_rel.gpu.global.add.u32 %0, [%1], 1;" : "=r"(before) : "l"(step.arrivals + pair) : "memory");
    shared.last = before + 1 == (u32)__popc(filled);
    if (shared.last) step.arrivals[pair] = 0;
  }
  consumers_meet();
  if (shared.last) merge_splits(step, pair, filled, out);
}

__device__ void attend(Ring& ring, const Step& step, const Layer& layer, Shared& shared) {
  int num_tasks = (int)step.batch * KV_HEADS * SPLITS, lane = threadIdx.x % HEAD_LANES;
  for (int index = blockIdx.x; index < num_tasks; index += gridDim.x) {
    Task task;
    if (!read_task(index, layer.borders, task)) continue;
    int position = step.positions[task.row];
    const float* projected = step.projected + task.row * QKV_ROWS;
    float q[GROUP][8];
#pragma unroll
    for (int g = 0; g < GROUP; ++g)
      load_head(q[g], projected + (task.head * GROUP + g) * DIM, layer.q_gain, layer.rope, position);
    NewToken fresh = {};
    if (task.begin <= position && position < task.end) {
      load_head(fresh.k, projected + (HEADS + task.head) * DIM, layer.k_gain, layer.rope, position);
      u64 page = step.block_tables[task.row * step.max_pages + position / PAGE];
      u64 at = ((page * KV_HEADS + task.head) * PAGE + position % PAGE) * DIM + lane * 8;
#pragma unroll
      for (int j = 0; j < 8; ++j) {
        fresh.k[j] = round_bf16(fresh.k[j]);
        fresh.v[j] = round_bf16(load_fresh(projected + (HEADS + KV_HEADS + task.head) * DIM + lane * 8 + j));
        if (threadIdx.x < HEAD_LANES) layer.k[at + j] = to_bf16(fresh.k[j]), layer.v[at + j] = to_bf16(fresh.v[j]);
      }
    }
    Running run;
#pragma unroll
    for (int g = 0; g < GROUP; ++g) {
      run.largest[g] = NEGATIVE_INFINITY, run.total[g] = 0;
#pragma unroll
      for (int j = 0; j < 8; ++j) run.sums[g][j] = 0;
    }
    for (int done = 0; done < task.num_pages; done += STAGE_PAGES) {
      barrier_wait(ring.full_bar(), ring.parity);
      attend_stage(run, q, ring.stage(), (task.first_page + done) * PAGE, task, position, fresh);
      __syncwarp();
      if (threadIdx.x % 32 == 0) barrier_arrive(ring.empty_bar());
      ring.advance();
    }
    gather_groups(run, shared.scratch);
    finish_task(step, layer, shared, task, index);
  }
}

// ---- The step ----

__device__ void consume_step(Ring ring, const Step& step, Shared& shared) {
  u32 target = 0;
  auto meet = [&] { grid_meets(step.meetings, target += gridDim.x); };
  for (int i = 0; i < LAYERS; ++i) {
    const Layer& layer = step.layers[i];
    project<QKV>(ring, step, layer, shared, step.scaled);
    meet();
    attend(ring, step, layer, shared);
    meet();
    project<O>(ring, step, layer, shared, step.attended);
    meet();
    project<GATE_UP>(ring, step, layer, shared, step.scaled);
    meet();
    project<DOWN>(ring, step, layer, shared, step.gated);
    meet();
  }
  project<HEAD>(ring, step, step.layers[0], shared, step.scaled);
  // The last to leave sets both counters back for the next launch.
  if (threadIdx.x == 0) {
    u32 before = atomicAdd(step.meetings + 1, 1);
    if (before + 1 == gridDim.x) step.meetings[0] = step.meetings[1] = 0;
  }
}

extern "C" __global__ void __launch_bounds__(CONSUMERS + 32, 1) decode_step(const __grid_constant__ Step step) {
  extern __shared__ __align__(128) unsigned char memory[];
  Shared& shared = *(Shared*)(memory + STAGES * STAGE_BYTES);
  Ring ring;
  ring.stages = shared_address(memory);
  ring.full = shared_address(shared.full);
  ring.empty = shared_address(shared.empty);
  if (threadIdx.x == 0) {
    for (int i = 0; i < STAGES; ++i) {
      barrier_init(ring.full + i * 8, 1);
      barrier_init(ring.empty + i * 8, CONSUMER_WARPS);
    }
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
  }
  __syncthreads();
  if (threadIdx.x >= CONSUMERS)
    stream_step(ring, step, threadIdx.x % 32);
  else
    consume_step(ring, step, shared);
}
