// Sixteen weight rows at a time times all columns, and what each projection does with its sums.

using Columns = uint4[BLOCKS][COLUMN_BLOCKS];
// Two chains where a warp has one block of columns: one product need not wait for the last.
constexpr int CHAINS = COLUMN_BLOCKS == 1 ? 2 : 1;
using Sums = float[CHAINS][COLUMN_BLOCKS][4];

__device__ __forceinline__ int k_warp() { return threadIdx.x / 32 % K_WARPS; }
// First column of this warp.
__device__ __forceinline__ int warp_column() { return threadIdx.x / 32 / K_WARPS * (8 * COLUMN_BLOCKS); }

// This thread's values of x for one step: columns lane / 4 of each block of eight, eight values of each block of K.
__device__ __forceinline__ void load_columns(Columns& to, const u16* x, int step, int width, int batch) {
  int lane = threadIdx.x % 32;
  u64 at = (u64)step * TILE_K + k_warp() * (TILE_K / K_WARPS) + lane % 4 * 8;
#pragma unroll
  for (int i = 0; i < BLOCKS; ++i) {
#pragma unroll
    for (int j = 0; j < COLUMN_BLOCKS; ++j) {
      int column = warp_column() + j * 8 + lane / 4;
      const uint4* from = (const uint4*)(x + (u64)column * width + at + i * 32);
      to[i][j] = column < batch ? load_fresh(from) : make_uint4(0, 0, 0, 0);
    }
  }
}

// Line of a stage that this thread reads as row lane / 4 of a product: eight lanes that load together then read lines
// whose swizzles differ in the highest bit, and so meet in no bank.
__device__ __forceinline__ int own_line() {
  int row = threadIdx.x % 32 / 4;
  return row / 2 + row % 2 * 4;
}

// One stage: sums += its 16 rows times x. The order of K within a block is permuted alike in both operands, so that a
// thread's eight values are neighbours in memory.
__device__ __forceinline__ void multiply_stage(Ring& ring, Sums& sums, const Columns& x) {
  int lane = threadIdx.x % 32, line = own_line();
  barrier_wait(ring.full_bar(), ring.parity);
  uint4 upper[BLOCKS], lower[BLOCKS];
#pragma unroll
  for (int i = 0; i < BLOCKS; ++i) {
    int block = k_warp() * BLOCKS + i;
    u32 at = ring.stage() + block / 2 * (ROWS * LINE) + line * LINE + ((block % 2 * 4 + lane % 4) ^ line) * 16;
    upper[i] = load_shared(at);
    lower[i] = load_shared(at + 8 * LINE);
  }
#pragma unroll
  for (int i = 0; i < BLOCKS; ++i) {
#pragma unroll
    for (int j = 0; j < COLUMN_BLOCKS; ++j) {
      multiply(sums[0][j], upper[i].x, lower[i].x, upper[i].y, lower[i].y, x[i][j].x, x[i][j].y);
      multiply(sums[CHAINS - 1][j], upper[i].z, lower[i].z, upper[i].w, lower[i].w, x[i][j].z, x[i][j].w);
    }
  }
  __syncwarp();
  if (lane == 0) barrier_arrive(ring.empty_bar());
  ring.advance();
}

// Leave this warp's sums of one tile for `send_sums`, [K warp][column][row].
__device__ __forceinline__ void leave_sums(float* scratch, const Sums& sums) {
  int lane = threadIdx.x % 32;
  float* at = scratch + (k_warp() * COLUMNS + warp_column() + lane % 4 * 2) * SUM_PITCH + own_line();
#pragma unroll
  for (int j = 0; j < COLUMN_BLOCKS; ++j, at += 8 * SUM_PITCH) {
    float all[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) all[i] = CHAINS == 2 ? sums[0][j][i] + sums[CHAINS - 1][j][i] : sums[0][j][i];
    at[0] = all[0], at[SUM_PITCH] = all[1], at[8] = all[2], at[SUM_PITCH + 8] = all[3];
  }
}

// The warps' sums of CLUSTER tiles, tile j to program j of the cluster.
__device__ __forceinline__ void send_sums(Shared& shared, const float (*sums)[SUM_FLOATS], u32 slot) {
  int rank = cluster_rank();
#pragma unroll
  for (int pair = threadIdx.x; pair < CLUSTER * TILE_VALUES / 2; pair += CONSUMERS) {
    int tile = pair / (TILE_VALUES / 2), column = pair / (ROWS / 2) % COLUMNS, row = pair % (ROWS / 2) * 2;
    float2 sum = {0, 0};
#pragma unroll
    for (int warp = 0; warp < K_WARPS; ++warp) {
      float2 part = *(const float2*)&sums[tile][(warp * COLUMNS + column) * SUM_PITCH + row];
      sum.x += part.x, sum.y += part.y;
    }
    u32 to = shared_address_of(shared_address(&shared.received[slot][rank][column * ROWS + row]), tile);
    send_pair(to, sum.x, sum.y, shared_address_of(shared_address(&shared.tile_bars[slot]), tile));
  }
}
__device__ __forceinline__ float total(const Shared& shared, u32 slot, int column, int row) {
  float sum = 0;
#pragma unroll
  for (int rank = 0; rank < CLUSTER; ++rank) sum += shared.received[slot][rank][column * ROWS + row];
  return sum;
}

// Sums of squares of every column, a part for each warp, from the tiles' in a fixed order.
__device__ __forceinline__ void find_squares(Shared& shared, const float* squares) {
  constexpr int QUADS = COLUMNS / 4;
  int lane = threadIdx.x % 32, quad = threadIdx.x % QUADS;
  float4 sum = {0, 0, 0, 0};
#pragma unroll
  for (int part = threadIdx.x / QUADS; part < PARTS; part += CONSUMERS / QUADS) {
    float4 four = load_fresh((const float4*)(squares + part * B_MAX + quad * 4));
    sum.x += four.x, sum.y += four.y, sum.z += four.z, sum.w += four.w;
  }
#pragma unroll
  for (int offset = 16; offset >= QUADS; offset /= 2) {
    sum.x += __shfl_xor_sync(~0u, sum.x, offset);
    sum.y += __shfl_xor_sync(~0u, sum.y, offset);
    sum.z += __shfl_xor_sync(~0u, sum.z, offset);
    sum.w += __shfl_xor_sync(~0u, sum.w, offset);
  }
  if (lane < QUADS) *(float4*)&shared.squares[threadIdx.x / 32][quad * 4] = sum;
}
__device__ __forceinline__ float inverse_rms(const Shared& shared, int column) {
  float sum = 0;
#pragma unroll
  for (int warp = 0; warp < CONSUMER_WARPS; ++warp) sum += shared.squares[warp][column];
  return rsqrtf(sum / HIDDEN + EPS);
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
    const Step& step, float* squares, int out, int column, float2 early, float y) {
  float square = 0;
  bool used = column < (int)step.batch;
  if (used) {
    float residual = early.x + y;
    step.residual[column * HIDDEN + out] = residual;
    step.scaled[column * HIDDEN + out] = to_bf16(residual * early.y);
    square = residual * residual;
  }
#pragma unroll
  for (int offset = 8; offset > 0; offset /= 2) square += __shfl_xor_sync(~0u, square, offset);
  if (used && out % ROWS == 0) squares[out / ROWS * B_MAX + column] = square;
}

// A model that ranks share: this rank's sum of one value goes to every rank's inbox (its own too), with the message's tag
// in the same word, so that its reader needs no fence. A rank that sends message n + 2 has received n + 1, which each
// rank sent after it had read n: two places suffice.
__device__ __forceinline__ u64 inbox_place(u32 tag, int source, int tile, int value) {
  return (u64)((tag & 1) * WORLD + source) * (HIDDEN * COLUMNS) + tile * TILE_VALUES + value;
}
__device__ __forceinline__ void send_to_ranks(const Step& step, u32 tag, int tile, int value, float y) {
  u64 place = inbox_place(tag, RANK, tile, value), packet = (u64)tag << 32 | __float_as_uint(y);
#pragma unroll
  for (int rank = 0; rank < WORLD; ++rank) store_packet((u64*)__ldg(step.inboxes + rank) + place, packet);
}
// Add up in rank order what all ranks sent of this program's tiles, from `first` on, and complete the residual.
template <Kind kind>
__device__ __forceinline__ void receive_from_ranks(const Step& step, const Layer& layer, u32 tag, int first) {
  constexpr int AT_ONCE = CONSUMERS / TILE_VALUES;
  static_assert(AT_ONCE > 0, "a thread completes one value");
  int apart = CLUSTER * (int)step.clusters, value = threadIdx.x % TILE_VALUES;
  int column = value / ROWS, row = value % ROWS;
  const u64* inbox = (const u64*)__ldg(step.inboxes + RANK);
#pragma unroll 1
  for (int tile = first + threadIdx.x / TILE_VALUES * apart; tile < Projection<kind>::TILES; tile += AT_ONCE * apart) {
    int out = tile * ROWS + row;
    float2 early = make_float2(0, 0);
    float y = 0;
    if (column < (int)step.batch) {
      early.x = load_fresh(step.residual + column * HIDDEN + out);
      early.y = (kind == O ? layer.mlp_gain : layer.next_gain)[out];
      float sums[WORLD];
#pragma unroll
      for (int rank = 0; rank < WORLD; ++rank) sums[rank] = await_packet(inbox + inbox_place(tag, rank, tile, value), tag);
#pragma unroll
      for (int rank = 0; rank < WORLD; ++rank) y += sums[rank];
    }
    add_to_residual(step, kind == O ? step.mlp_squares : step.attn_squares, out, column, early, y);
  }
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

// The outputs of a tile that one thread finishes.
constexpr int OUTPUTS = (TILE_VALUES + CONSUMERS - 1) / CONSUMERS;

// The tile that this program finishes, of the group being summed; and what its end needs, asked for before its sums, so
// that it comes while they are made: (residual, gain) or (, bias).
struct Pending {
  int tile;
  float2 early[OUTPUTS];
};

template <Kind kind>
__device__ __forceinline__ void load_early(Pending& pending, const Step& step, const Layer& layer, int tile) {
  pending.tile = tile;
#pragma unroll
  for (int i = 0; i < OUTPUTS; ++i) {
    int value = threadIdx.x + i * CONSUMERS, column = value / ROWS, out = tile * ROWS + value % ROWS;
    pending.early[i] = make_float2(0, 0);
    if (tile >= Projection<kind>::TILES || column >= (int)step.batch) continue;
    if constexpr ((kind == O || kind == DOWN) && WORLD == 1) {
      pending.early[i].x = load_fresh(step.residual + column * HIDDEN + out);
      pending.early[i].y = (kind == O ? layer.mlp_gain : layer.next_gain)[out];
    }
    if constexpr (kind == QKV && QKV_BIAS) pending.early[i].y = layer.qkv_bias[out];
  }
}

template <Kind kind>
__device__ __forceinline__ void finish_value(
    const Step& step, const Shared& shared, u32 slot, int tile, int value, float2 early, Best& best, u32 tag) {
  int column = value / ROWS, row = value % ROWS, batch = (int)step.batch, out = tile * ROWS + row;
  if constexpr (kind == GATE_UP) {
    column = value / 8, row = value % 8;
    if (column >= batch) return;
    float scale = inverse_rms(shared, column);
    float y = activate(total(shared, slot, column, row) * scale) * (total(shared, slot, column, row + 8) * scale);
    step.gated[column * INTER + tile * 8 + row] = to_bf16(y);
    return;
  }
  float y = total(shared, slot, column, row);
  if constexpr ((kind == O || kind == DOWN) && WORLD > 1) {
    if (column < batch) send_to_ranks(step, tag, tile, value, y);
    return;
  }
  if constexpr (kind == O) add_to_residual(step, step.mlp_squares, out, column, early, y);
  if constexpr (kind == DOWN) add_to_residual(step, step.attn_squares, out, column, early, y);
  if constexpr (kind == QKV)
    if (column < batch) step.projected[column * QKV_ROWS + out] = y * inverse_rms(shared, column) + early.y;
  if constexpr (kind == HEAD) {
    y *= column < batch ? inverse_rms(shared, column) : 0.0f;
    if (column < batch) step.logits[(u64)column * VOCAB + out] = y;
    keep_best(best, y, out);
  }
}

// Wait for the cluster's sums of this program's tile and finish it.
template <Kind kind>
__device__ __forceinline__ void finish_tile(
    const Step& step, Shared& shared, Turns& turns, const Pending& pending, Best (&best)[OUTPUTS], u32 tag) {
  constexpr int VALUES = kind == GATE_UP ? TILE_VALUES / 2 : TILE_VALUES;
  u32 slot = turns.tiles & 1, bar = shared_address(&shared.tile_bars[slot]);
  if (threadIdx.x < VALUES) cluster_barrier_wait(bar, turns.tiles >> 1 & 1);
  if (threadIdx.x == 0) barrier_expect(bar, TILE_BYTES);
#pragma unroll
  for (int i = 0; i < OUTPUTS; ++i) {
    int value = threadIdx.x + i * CONSUMERS;
    if (value < VALUES && pending.tile < Projection<kind>::TILES)
      finish_value<kind>(step, shared, slot, pending.tile, value, pending.early[i], best[i], tag);
  }
  ++turns.tiles;
}

// Sums of up to TOGETHER tiles, from `first` on, that this program's slice of K gives, left in shared memory. A tile's
// loop is not unrolled: the whole layer's code has to stay in the instruction cache.
template <Kind kind>
__device__ __forceinline__ void sum_tiles(
    Ring& ring, Shared& shared, Columns (&x)[Projection<kind>::DEPTH], const Step& step, const u16* from, int first) {
  using P = Projection<kind>;
  int begin = P::begin(), count = P::count(), clusters = (int)step.clusters;
  bool is_first = first < clusters;
  if constexpr (P::HELD) {
#pragma unroll 1
    for (int j = 0; j < CLUSTER; ++j) {
      Sums sums = {};
      if (first + j * clusters < P::TILES) {
        int2 steps = P::steps(j);
#pragma unroll
        for (int i = 0; i < P::MOST; ++i)
          if (steps.x <= begin + i && begin + i < steps.y) multiply_stage(ring, sums, x[i]);
      }
      // Whoever still adds up the tiles before reads what is overwritten here.
      if (j == 0 && !is_first) consumers_meet();
      leave_sums(shared.sums[j], sums);
    }
  } else {
    Sums sums[P::TOGETHER] = {};
#pragma unroll 1
    for (int i = 0; i < count; ++i) {
#pragma unroll
      for (int j = 0; j < P::TOGETHER; ++j)
        if (first + j * clusters < P::TILES) multiply_stage(ring, sums[j], x[0]);
#pragma unroll
      for (int d = 0; d + 1 < P::DEPTH; ++d)
#pragma unroll
        for (int j = 0; j < BLOCKS; ++j)
#pragma unroll
          for (int l = 0; l < COLUMN_BLOCKS; ++l) x[d][j][l] = x[d + 1][j][l];
      // Past the end, the next tiles' beginning.
      load_columns(x[P::DEPTH - 1], from, begin + (i + P::DEPTH) % count, P::K, (int)step.batch);
    }
    if (!is_first) consumers_meet();
#pragma unroll
    for (int j = 0; j < P::TOGETHER; ++j) leave_sums(shared.sums[j], sums[j]);
  }
}

// `tag`: of the message to the other ranks, where the model is shared and sums are to be completed.
template <Kind kind>
__device__ void project(
    Ring& ring, Turns& turns, Dealer& dealer, const Step& step, const Layer& layer, Shared& shared, const u16* from,
    u32 tag = 0) {
  using P = Projection<kind>;
  int rank = cluster_rank(), begin = P::begin(), count = P::count(), clusters = (int)step.clusters;
  Columns x[P::DEPTH];
#pragma unroll
  for (int i = 0; i < P::DEPTH; ++i)
    if (i < count) load_columns(x[i], from, begin + i, P::K, (int)step.batch);
  if constexpr (kind == QKV || kind == HEAD) find_squares(shared, step.attn_squares);
  if constexpr (kind == GATE_UP) find_squares(shared, step.mlp_squares);
  if (threadIdx.x == 0) shared.parts_begun = shared.parts_begun + 1;
  Best best[OUTPUTS];
#pragma unroll
  for (int i = 0; i < OUTPUTS; ++i) best[i] = {NEGATIVE_INFINITY, 0x7fffffff};
  Pending pending = {-1}, next;
  int dealt = dealer.deal(P::TILES, clusters);
#pragma unroll 1
  for (int first = dealt; first < P::TILES; first += clusters * P::TOGETHER) {
    load_early<kind>(next, step, layer, first + rank * clusters);
    sum_tiles<kind>(ring, shared, x, step, from, first);
#pragma unroll 1
    for (int set = 0; set < P::SETS; ++set) {
      // A tile is finished while the next ones are summed: its sums travel meanwhile.
      if (pending.tile >= 0) finish_tile<kind>(step, shared, turns, pending, best, tag);
      pending = next;
      if (set + 1 < P::SETS) load_early<kind>(next, step, layer, first + (CLUSTER + rank) * clusters);
      consumers_meet();
      send_sums(shared, shared.sums + set * CLUSTER, turns.tiles & 1);
    }
  }
  if (pending.tile >= 0) finish_tile<kind>(step, shared, turns, pending, best, tag);
  if constexpr ((kind == O || kind == DOWN) && WORLD > 1)
    receive_from_ranks<kind>(step, layer, tag, dealt + rank * clusters);
  if constexpr (kind == HEAD) {
#pragma unroll
    for (int i = 0; i < OUTPUTS; ++i) {
      int value = threadIdx.x + i * CONSUMERS, column = value / ROWS;
      if (value % ROWS == 0 && column < (int)step.batch) {
        step.best[column * gridDim.x + blockIdx.x] = best[i].value;
        step.best_id[column * gridDim.x + blockIdx.x] = best[i].id;
      }
    }
  }
}
