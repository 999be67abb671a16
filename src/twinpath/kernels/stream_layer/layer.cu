// From a layer's attended rows to the next layer's q, k and v, in one launch: four products as in `linear.cu`, norms folded
// into them. One warp of each program streams weights through a ring in shared memory and does not stop at the border
// between two products: while their sums are joined, stored and awaited, the next one's first weights arrive.
//
//   residual += attended o^T                         x = residual * mlp_norm, sums of squares by row and tile
//   gated = act(s x gates^T) * (s x ups^T)           s = 1 / sqrt(mean of squares + eps), after the sum
//   residual += gated down^T                         x = residual * next_norm, sums of squares again
//   qkv = s x qkv^T                                  unless this is the last layer
//
// All programs meet between two products, so all must fit the card at once. Products of two slices of K (every one but the
// gates') are shared by the two programs of a cluster, each of which ends with half of the columns. A row's sums have one
// order whatever the other rows are and however many.
//
// Compiled for one model: ROWS (32, or a multiple of 64) HIDDEN HEADS_WIDTH INNER QKV_WIDTH RESIDUAL_TILE GATE_TILE QKV_TILE EPS GELU
// SHARED_BYTES are macros. `multiply_tile` stands before this text for each tile.

// ---------------------------------------------------------------------------------------------- the warp that streams

template <class P>
__device__ __forceinline__ void ask_weights(const Memory& m, const TensorMap* weights, int step, u64 policy) {
  int stage = step % P::STAGES;
  u32 to = m.ring + stage * P::STAGE_BYTES + ROWS * LINE, bar = m.full(P::NUMBER, stage);
  int column = (P::first_step() + step) * 64, row = P::tile() * P::WIDTH;
  barrier_expect(bar, P::STAGE_BYTES);
  copy_box(to, weights, column, row, bar, policy);
  if constexpr (P::GATED) copy_box(to + P::WEIGHT_BYTES / 2, weights, column, P::COLUMNS + row, bar, policy);
}

template <class P>
__device__ __forceinline__ void ask_rows(const Memory& m, const TensorMap* rows, int step) {
  int stage = step % P::STAGES;
  copy_box(m.ring + stage * P::STAGE_BYTES, rows, (P::first_step() + step) * 64, 0, m.full(P::NUMBER, stage));
}

// Weights of stages from `first` on, as what they overwrite has been read.
template <class Before, class P>
__device__ __forceinline__ void ask_ahead(const Memory& m, const TensorMap* weights, u64 policy, int first, int past) {
  if (!P::takes_part()) return;
  int awaited = first * P::STAGE_BYTES / Before::STAGE_BYTES;
#pragma unroll 1
  for (int stage = first; stage < past; ++stage) {
    int last = smaller(((stage + 1) * P::STAGE_BYTES - 1) / Before::STAGE_BYTES, Before::STAGES - 1);
    if (Before::takes_part())
      for (; awaited <= last; ++awaited) barrier_wait(m.empty(Before::NUMBER, awaited), Before::last_parity(awaited));
    ask_weights<P>(m, weights, stage, policy);
  }
}

// Every program's results are stored before any goes on. `target`: arrivals by then, ever.
__device__ __forceinline__ void programs_meet(u64* meetings, u64 target) {
  asm volatile("fence.acq_rel.gpu;\nred.relaxed.gpu.global.add.u64 [%0], 1;" ::"l"(meetings) : "memory");
  u64 seen;
  u32 polls = 0;
  do {
    asm volatile("ld.acquire.gpu.global.u64 %0, [%1];" : "=l"(seen) : "l"(meetings) : "memory");
    if (++polls == MAX_POLLS) __trap();
  } while (seen < target);
  // The copy engine reads next what others wrote.
  asm volatile("fence.proxy.async.global;" ::: "memory");
}

// Rows of the stages whose weights were asked for, then the rest.
template <class P>
__device__ __forceinline__ void stream(const Memory& m, const TensorMap* weights, const TensorMap* rows, u64 policy) {
  if (P::takes_part())
#pragma unroll 1
    for (int step = 0; step < P::STAGES; ++step) ask_rows<P>(m, rows, step);
  barrier_arrive(m.begun(P::NUMBER));
  if (!P::takes_part()) return;
#pragma unroll 1
  for (int step = P::STAGES; step < P::STEPS; ++step) {
    barrier_wait(m.empty(P::NUMBER, step % P::STAGES), (step / P::STAGES - 1) & 1);
    ask_weights<P>(m, weights, step, policy);
    ask_rows<P>(m, rows, step);
  }
}

template <class Before, class P>
__device__ __forceinline__ void follow(
    const Memory& m, u64* meetings, u64 before, const TensorMap* weights, const TensorMap* rows, u64 policy) {
  ask_ahead<Before, P>(m, weights, policy, 0, P::FREE);
  barrier_wait(m.stored(Before::NUMBER), 0);
  ask_ahead<Before, P>(m, weights, policy, P::FREE, P::STAGES);
  programs_meet(meetings, before + P::NUMBER * gridDim.x);
  stream<P>(m, weights, rows, policy);
}

__device__ __forceinline__ void produce(const Layer& p, const Memory& m, u64 policy) {
  await_previous_kernel();
  // This program is missing from the first meeting, so that no more than the launches before can have ended one.
  u64 before = *(volatile u64*)p.meetings / gridDim.x * gridDim.x;
  stream<Attended>(m, p.o, p.attended_rows, policy);
  follow<Attended, Gates>(m, p.meetings, before, p.gate_up, p.x_rows, policy);
  follow<Gates, Down>(m, p.meetings, before, p.down, p.gated_rows, policy);
  if (p.has_next) follow<Down, Next>(m, p.meetings, before, p.qkv, p.x_rows, policy);
}

// ---------------------------------------------------------------------------------------------- the warps that multiply

// The compiler may not move what it does with these across: the tensor cores write them on their own.
template <int NUM>
__device__ __forceinline__ void hold(float (&sums)[NUM]) {
#pragma unroll
  for (int i = 0; i < NUM; ++i) asm volatile("" : "+f"(sums[i])::"memory");
}

template <class P>
__device__ __forceinline__ void multiply_steps(float (&sums)[P::TILE / 2], const Memory& m) {
  int group = threadIdx.x / 128, index = 0, before = 0;
  u32 parity = 0;
#pragma unroll
  for (int i = 0; i < P::TILE / 2; ++i) sums[i] = 0.0f;
  hold(sums);
#pragma unroll 1
  for (int step = 0; step < P::STEPS; ++step) {
    barrier_wait(m.full(P::NUMBER, index), parity);
    u32 stage = m.ring + index * P::STAGE_BYTES;
    u64 weights = matrix_at(stage + ROWS * LINE), rows = matrix_at(stage + group * 64 * LINE);
    multiply_fence();
#pragma unroll
    for (int k = 0; k < 4; ++k) multiply_tile(sums, rows + 2 * k, weights + 2 * k, 1);
    multiply_commit();
    multiply_wait<1>();
    if (step > 0 && threadIdx.x % 32 == 0) barrier_arrive(m.empty(P::NUMBER, before));
    before = index;
    if (++index == P::STAGES) {
      index = 0;
      parity ^= 1;
    }
  }
  multiply_wait<0>();
  hold(sums);
  if (threadIdx.x % 32 == 0) barrier_arrive(m.empty(P::NUMBER, before));
}

// The cluster's programs add up their slices: each keeps one half of a thread's sums and sends the other. There is room:
// the other program is past the product before this one, or nobody would have begun it.
template <class P>
__device__ __forceinline__ void join(float (&sums)[P::TILE / 2], const Memory& m) {
  bool is_first = cluster_rank() == 0;
  u32 room = m.ring + ROOM_AT + threadIdx.x * 16;
#pragma unroll
  for (int i = 0; i < P::OWN_SUMS; i += 4) {
    int last = P::OWN_SUMS + i;
    send_four(room + i / 4 * CONSUMERS * 16, is_first ? sums[last] : sums[i], is_first ? sums[last + 1] : sums[i + 1],
              is_first ? sums[last + 2] : sums[i + 2], is_first ? sums[last + 3] : sums[i + 3], m.joined(P::NUMBER));
  }
  barrier_wait(m.joined(P::NUMBER), 0);
#pragma unroll
  for (int i = 0; i < P::OWN_SUMS; i += 4) {
    float other[4];
    load_shared(other, room + i / 4 * CONSUMERS * 16);
#pragma unroll
    for (int j = 0; j < 4; ++j) sums[i + j] = (is_first ? sums[i + j] : sums[P::OWN_SUMS + i + j]) + other[j];
  }
}

// A thread has rows r and r + 8, of eight columns two each.
__device__ __forceinline__ u64 thread_row() { return threadIdx.x / 32 * 16 + threadIdx.x % 32 / 4; }
template <class P>
__device__ __forceinline__ int thread_column() {
  return P::tile() * P::WIDTH + (P::SPLITS > 1 ? cluster_rank() * P::OWN_WIDTH : 0) + threadIdx.x % 4 * 2;
}

__device__ __forceinline__ float sum_of_row(float x) {
  x += __shfl_xor_sync(~0u, x, 1);
  return x + __shfl_xor_sync(~0u, x, 2);
}

// 1 / sqrt(mean of squares + eps) of one row, four threads together.
__device__ __forceinline__ float row_scale(const Layer& p, u64 row) {
  const float4* squares = (const float4*)(p.squares + row * PARTS) + threadIdx.x % 4;
  float sum = 0.0f;
#pragma unroll
  for (int i = 0; i < PARTS / 16; ++i) {
    float4 v = __ldcg(squares + 4 * i);
    sum += (v.x + v.y) + (v.z + v.w);
  }
  return rsqrtf(sum_of_row(sum) * (1.0f / HIDDEN) + EPS);
}

// residual += sums; x and sums of squares for the norm that follows, if one does.
template <class P>
__device__ __forceinline__ void add_to_residual(const Layer& p, const Memory& m, const float* norm) {
  constexpr int BLOCKS = P::OWN_WIDTH / 8;
  u64 first_row = thread_row();
  int first_column = thread_column<P>();
  // Read now: at the product's end they would stand behind a ring of weights that is being filled, 7 us.
  float2 held[2][BLOCKS], gains[BLOCKS];
#pragma unroll
  for (int block = 0; block < BLOCKS; ++block)
    gains[block] = norm == nullptr ? make_float2(0.0f, 0.0f) : *(const float2*)(norm + first_column + 8 * block);
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    u64 row = first_row + 8 * half;
    if (row >= p.num_rows) continue;
#pragma unroll
    for (int block = 0; block < BLOCKS; ++block)
      held[half][block] = __ldcg((const float2*)(p.residual + row * HIDDEN + first_column + 8 * block));
  }
  float sums[P::TILE / 2];
  multiply_steps<P>(sums, m);
  join<P>(sums, m);
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    u64 row = first_row + 8 * half;
    float squares = 0.0f;
    if (row < p.num_rows) {
#pragma unroll
      for (int block = 0; block < BLOCKS; ++block) {
        int column = first_column + 8 * block, at = block * 4 + half * 2;
        float low = held[half][block].x + sums[at], high = held[half][block].y + sums[at + 1];
        *(float2*)(p.residual + row * HIDDEN + column) = make_float2(low, high);
        squares += low * low + high * high;
        if (norm != nullptr)
          p.x[(row * HIDDEN + column) / 2] = to_bf16_pair(low * gains[block].x, high * gains[block].y);
      }
    }
    squares = sum_of_row(squares);
    if (row < p.num_rows && threadIdx.x % 4 == 0) p.squares[row * PARTS + blockIdx.x] = squares;
  }
}

__device__ __forceinline__ float activated(float gate) {
  // 0.5 x (1 + tanh(z)) is x * sigmoid(2 z). Source: Hendrycks and Gimpel 2016, section 2.
  float z = GELU ? 1.5957691216057308f * (gate + 0.044715f * gate * gate * gate) : gate;
  return __fdividef(gate, 1.0f + __expf(-z));
}

__device__ __forceinline__ void gate(const Layer& p, const Memory& m) {
  u64 first_row = thread_row();
  float scales[2] = {row_scale(p, first_row), row_scale(p, first_row + 8)};
  float sums[Gates::TILE / 2];
  multiply_steps<Gates>(sums, m);
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    u64 row = first_row + 8 * half;
    if (row >= p.num_rows) continue;
    float scale = scales[half];
#pragma unroll
    for (int block = 0; block < Gates::WIDTH / 8; ++block) {
      int column = thread_column<Gates>() + 8 * block, at = block * 4 + half * 2, up = at + Gates::WIDTH / 2;
      float low = activated(scale * sums[at]) * (scale * sums[up]);
      float high = activated(scale * sums[at + 1]) * (scale * sums[up + 1]);
      p.gated[(row * INNER + column) / 2] = to_bf16_pair(low, high);
    }
  }
}

__device__ __forceinline__ void project(const Layer& p, const Memory& m) {
  u64 first_row = thread_row();
  float scales[2] = {row_scale(p, first_row), row_scale(p, first_row + 8)};
  float sums[Next::TILE / 2];
  multiply_steps<Next>(sums, m);
  join<Next>(sums, m);
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    u64 row = first_row + 8 * half;
    if (row >= p.num_rows) continue;
#pragma unroll
    for (int block = 0; block < Next::OWN_WIDTH / 8; ++block) {
      int column = thread_column<Next>() + 8 * block, at = block * 4 + half * 2;
      *(float2*)(p.projected + row * QKV_WIDTH + column) = make_float2(scales[half] * sums[at], scales[half] * sums[at + 1]);
    }
  }
}

// This warp's results are on their way to whoever waits for `programs_meet`.
__device__ __forceinline__ void results_are_stored(const Memory& m, int phase) {
  __syncwarp();
  if (threadIdx.x % 32 == 0) barrier_arrive(m.stored(phase));
}

__device__ __forceinline__ void consume(const Layer& p, const Memory& m) {
  barrier_wait(m.begun(0), 0);
  if (Attended::takes_part()) add_to_residual<Attended>(p, m, p.mlp_norm);
  results_are_stored(m, 0);
  barrier_wait(m.begun(1), 0);
  if (Gates::takes_part()) gate(p, m);
  results_are_stored(m, 1);
  barrier_wait(m.begun(2), 0);
  if (Down::takes_part()) add_to_residual<Down>(p, m, p.has_next ? p.next_norm : nullptr);
  if (!p.has_next) return;
  results_are_stored(m, 2);
  barrier_wait(m.begun(3), 0);
  if (Next::takes_part()) project(p, m);
}

template <class P>
__device__ __forceinline__ void make_barriers(const Memory& m) {
  for (int stage = 0; stage < P::STAGES; ++stage) {
    barrier_init(m.full(P::NUMBER, stage), 1);
    barrier_init(m.empty(P::NUMBER, stage), CONSUMER_WARPS);
  }
  barrier_init(m.joined(P::NUMBER), 1);
  barrier_init(m.stored(P::NUMBER), CONSUMER_WARPS);
  barrier_init(m.begun(P::NUMBER), 1);
}

template <class P>
__device__ __forceinline__ void expect_sums(const Memory& m) {
  if constexpr (P::SPLITS > 1) barrier_expect(m.joined(P::NUMBER), CONSUMERS * P::OWN_SUMS * 4);
}

extern "C" __global__ void __launch_bounds__(THREADS, 1) __cluster_dims__(2, 1, 1)
    stream_layer(const __grid_constant__ Layer p) {
  extern __shared__ unsigned char memory[];
  // The swizzle of a stage counts from multiples of 1,024.
  Memory m;
  m.ring = (shared_address(memory) + 1023) / 1024 * 1024;
  m.barriers = m.ring + RING_BYTES / 8 * 8;
  start_next_kernel();
  if (threadIdx.x == 0) {
    make_barriers<Attended>(m);
    make_barriers<Gates>(m);
    make_barriers<Down>(m);
    make_barriers<Next>(m);
    barriers_are_seen();
    expect_sums<Attended>(m);
    expect_sums<Down>(m);
    expect_sums<Next>(m);
  }
  __syncthreads();
  u64 policy = read_once_policy();
  if (threadIdx.x == CONSUMERS && Attended::takes_part()) {
#pragma unroll 1
    for (int step = 0; step < Attended::STAGES; ++step) ask_weights<Attended>(m, p.o, step, policy);
  }
  __syncwarp();
  everyone_meets();  // The other program's barriers are made.
  if (threadIdx.x / 32 < CONSUMER_WARPS)
    consume(p, m);
  else if (threadIdx.x == CONSUMERS)
    produce(p, m, policy);
}
