// Sixteen weight rows at a time times up to eight columns, and what each projection does with its sums.

// This thread's values of x for one step: column lane / 4, eight values of each block.
__device__ __forceinline__ void load_columns(uint4 (&to)[BLOCKS], const u16* x, int step, int width, int batch) {
  int warp = threadIdx.x / 32, lane = threadIdx.x % 32, column = lane / 4;
  u64 at = (u64)column * width + step * TILE_K + warp * (TILE_K / CONSUMER_WARPS) + lane % 4 * 8;
#pragma unroll
  for (int i = 0; i < BLOCKS; ++i)
    to[i] = column < batch ? load_fresh((const uint4*)(x + at + i * 32)) : make_uint4(0, 0, 0, 0);
}

// Line of a stage that this thread reads as row lane / 4 of a product: eight lanes that load together then read lines
// whose swizzles differ in the highest bit, and so meet in no bank.
__device__ __forceinline__ int own_line() {
  int row = threadIdx.x % 32 / 4;
  return row / 2 + row % 2 * 4;
}

// One stage: sums += its 16 rows times x, in two chains, so that one product need not wait for the last. The order of
// K within a block is permuted alike in both operands, so that a thread's eight values are neighbours in memory.
__device__ __forceinline__ void multiply_stage(Ring& ring, float (&sums)[2][4], const uint4* x) {
  int warp = threadIdx.x / 32, lane = threadIdx.x % 32, line = own_line();
  barrier_wait(ring.full_bar(), ring.parity);
  uint4 upper[BLOCKS], lower[BLOCKS];
#pragma unroll
  for (int i = 0; i < BLOCKS; ++i) {
    int block = warp * BLOCKS + i;
    u32 at = ring.stage() + block / 2 * (ROWS * LINE) + line * LINE + ((block % 2 * 4 + lane % 4) ^ line) * 16;
    upper[i] = load_shared(at);
    lower[i] = load_shared(at + 8 * LINE);
  }
#pragma unroll
  for (int i = 0; i < BLOCKS; ++i) {
    multiply(sums[0], upper[i].x, lower[i].x, upper[i].y, lower[i].y, x[i].x, x[i].y);
    multiply(sums[1], upper[i].z, lower[i].z, upper[i].w, lower[i].w, x[i].z, x[i].w);
  }
  __syncwarp();
  if (lane == 0) barrier_arrive(ring.empty_bar());
  ring.advance();
}

// Leave this warp's sums where `total` finds them, [column][row].
__device__ __forceinline__ void leave_sums(float* scratch, const float (&sums)[2][4]) {
  int lane = threadIdx.x % 32;
  float* at = scratch + threadIdx.x / 32 * (COLUMNS * SUM_PITCH) + lane % 4 * 2 * SUM_PITCH + own_line();
  at[0] = sums[0][0] + sums[1][0];
  at[SUM_PITCH] = sums[0][1] + sums[1][1];
  at[8] = sums[0][2] + sums[1][2];
  at[SUM_PITCH + 8] = sums[0][3] + sums[1][3];
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

// What a tile's end needs, asked for before its sums: it comes while the tile is summed.
struct Early {
  float residual, factor;
};

// residual += y, and what the next norm needs of it.
__device__ __forceinline__ void add_to_residual(
    const Step& step, float* squares, int out, int column, Early early, float y) {
  float square = 0;
  bool used = column < (int)step.batch;
  if (used) {
    float residual = early.residual + y;
    step.residual[column * HIDDEN + out] = residual;
    step.scaled[column * HIDDEN + out] = to_bf16(residual * early.factor);
    square = residual * residual;
  }
#pragma unroll
  for (int offset = 8; offset > 0; offset /= 2) square += __shfl_xor_sync(~0u, square, offset);
  if (used && out % ROWS == 0) squares[out / ROWS * B_MAX + column] = square;
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
    const Step& step, Shared& shared, const float* scratch, int tile, Early early, Best& best) {
  int column = threadIdx.x / ROWS, row = threadIdx.x % ROWS, batch = (int)step.batch;
  if constexpr (kind == GATE_UP) {
    column = threadIdx.x / 8, row = threadIdx.x % 8;
    if (column >= batch) return;
    float scale = shared.inverse_rms[column];
    float y = activate(total(scratch, column, row) * scale) * (total(scratch, column, row + 8) * scale);
    step.gated[column * INTER + tile * 8 + row] = to_bf16(y);
    return;
  }
  if (threadIdx.x >= ROWS * COLUMNS) return;
  float y = total(scratch, column, row);
  int out = tile * ROWS + row;
  if constexpr (kind == O) add_to_residual(step, step.mlp_squares, out, column, early, y);
  if constexpr (kind == DOWN) add_to_residual(step, step.attn_squares, out, column, early, y);
  if constexpr (kind == QKV)
    if (column < batch) step.projected[column * QKV_ROWS + out] = y * shared.inverse_rms[column] + early.factor;
  if constexpr (kind == HEAD) {
    y *= column < batch ? shared.inverse_rms[column] : 0.0f;
    if (column < batch) step.logits[(u64)column * VOCAB + out] = y;
    keep_best(best, y, out);
  }
}

template <Kind kind>
__device__ __forceinline__ Early load_early(const Step& step, const Layer& layer, int tile) {
  int column = threadIdx.x / ROWS, out = tile * ROWS + threadIdx.x % ROWS;
  Early early = {0, 0};
  if (tile >= Projection<kind>::TILES || column >= (int)step.batch) return early;
  if constexpr (kind == O || kind == DOWN) {
    early.residual = load_fresh(step.residual + column * HIDDEN + out);
    early.factor = (kind == O ? layer.mlp_gain : layer.next_gain)[out];
  }
  if constexpr (kind == QKV && QKV_BIAS) early.factor = layer.qkv_bias[out];
  return early;
}

template <Kind kind>
__device__ void project(Ring& ring, const Step& step, const Layer& layer, Shared& shared, const u16* x) {
  using P = Projection<kind>;
  constexpr int DEPTH = P::HELD ? P::STEPS : 3;
  int batch = (int)step.batch, turn = 0;
  uint4 held[DEPTH][BLOCKS];
#pragma unroll
  for (int i = 0; i < DEPTH; ++i) load_columns(held[i], x, i % P::STEPS, P::K, batch);
  if constexpr (kind == QKV || kind == HEAD) find_inverse_rms(shared, step.attn_squares, batch);
  if constexpr (kind == GATE_UP) find_inverse_rms(shared, step.mlp_squares, batch);
  if (threadIdx.x == 0) shared.parts_begun = shared.parts_begun + 1;
  Best best = {NEGATIVE_INFINITY, 0x7fffffff};
  for (int first = blockIdx.x; first < P::TILES; first += PROGRAMS * P::TOGETHER) {
    float sums[P::TOGETHER][2][4] = {};
    Early early[P::TOGETHER];
#pragma unroll
    for (int j = 0; j < P::TOGETHER; ++j) early[j] = load_early<kind>(step, layer, first + j * PROGRAMS);
    if constexpr (P::HELD) {
#pragma unroll
      for (int i = 0; i < P::STEPS; ++i) multiply_stage(ring, sums[0], held[i]);
    } else {
      for (int i = 0; i < P::STEPS; ++i) {
#pragma unroll
        for (int j = 0; j < P::TOGETHER; ++j)
          if (first + j * PROGRAMS < P::TILES) multiply_stage(ring, sums[j], held[0]);
#pragma unroll
        for (int j = 0; j < BLOCKS; ++j) held[0][j] = held[1][j], held[1][j] = held[2][j];
        // Two steps ahead; past the end, the next tiles' beginning.
        load_columns(held[2], x, (i + 3) % P::STEPS, P::K, batch);
      }
    }
    // Two sets in turn (HELD) need one meeting a tile; a set that is alone is met about twice.
    if (!P::HELD && turn++ > 0) consumers_meet();
    if (P::HELD) turn ^= 1;
#pragma unroll
    for (int j = 0; j < P::TOGETHER; ++j) leave_sums(shared.sums[P::HELD ? turn : j], sums[j]);
    consumers_meet();
#pragma unroll
    for (int j = 0; j < P::TOGETHER; ++j)
      if (first + j * PROGRAMS < P::TILES)
        finish_tile<kind>(
            step, shared, shared.sums[P::HELD ? turn : j], first + j * PROGRAMS, early[j], best);
  }
  if constexpr (kind == HEAD) {
    int column = threadIdx.x / ROWS;
    if (threadIdx.x % ROWS == 0 && column < batch) {
      step.best[column * PROGRAMS + blockIdx.x] = best.value;
      step.best_id[column * PROGRAMS + blockIdx.x] = best.id;
    }
  }
}
