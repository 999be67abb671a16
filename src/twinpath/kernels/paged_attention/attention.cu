// What the warps do, and the kernel.

__device__ __forceinline__ void copy_page(u32 to, const TensorMap* map, int row, u32 bar) {
  asm volatile(
      "cp.async.bulk.tensor.4d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3, %4, %5}], [%6];"
      ::"r"(to), "l"(map), "r"(0), "r"(row), "r"(0), "r"(0), "r"(bar)
      : "memory");
}

// The warp that streams: takes items, tells the others, and brings their pages.
__device__ void stream_items(Ring ring, const Attention& a, Shared& shared) {
  int lane = threadIdx.x % 32, index = blockIdx.x, num = *a.num_items * KV_HEADS;
#pragma unroll 1
  for (u32 turn = 0;; ++turn) {
    u32 slot = turn & 1, item_full = shared_address(&shared.item_full[slot]);
    Item item = a.items[min(index, num - 1) / KV_HEADS];
    int head = index % KV_HEADS;
    barrier_wait(shared_address(&shared.item_empty[slot]), (turn >> 1 & 1) ^ 1);
    if (index >= num) item.num_parts = 0;
    if (lane == 0) {
      shared.items[slot] = item;
      shared.heads[slot] = head;
      barrier_arrive(item_full);
    }
    if (index >= num) return;
    int first = item.begin / PAGE, num_pages = (part_end(item) + PAGE - 1) / PAGE - first;
    const int* table = a.tables + (u64)item.tile.slot * a.max_pages + first;
    int page = table[min(lane, num_pages - 1)];
#pragma unroll 1
    for (int done = 0; done < num_pages; done += BLOCK_PAGES) {
      int next = table[min(done + BLOCK_PAGES + lane, num_pages - 1)], here = min(BLOCK_PAGES, num_pages - done);
      barrier_wait(ring.empty_bar(), ring.parity ^ 1);
      if (lane == 0) barrier_expect(ring.full_bar(), here * PAIR_BYTES);
      __syncwarp();
      if (lane < here)
        copy_page(ring.stage() + lane * PAIR_BYTES, a.pages, (page * KV_HEADS + head) * PAGE, ring.full_bar());
      page = next;
      ring.advance();
    }
    // Not sooner: who has a long item should not have the next one as well. The ring is full meanwhile.
    int taken = lane == 0 ? (int)atomicAdd(a.num_taken, 1u) : 0;
    index = gridDim.x + __shfl_sync(~0u, taken, 0);
  }
}

// The warps of one group.
template <int group>
__device__ __forceinline__ void group_meets() {
  asm volatile("bar.sync %0, 128;" ::"n"(1 + group) : "memory");
}

// Running softmax of a thread's two lanes: columns 8 i + 2 (thread % 4) and the next of each, and its share of `total`.
struct Running {
  float sums[DIM / 2], largest[2], total[2];
};

struct Lanes {
  // Of the tile.
  int lane[2];
  // Places of their values in a buffer of [rows][HEADS][DIM].
  u64 cell[2];
  int position[2];
  bool used[2];
};

__device__ __forceinline__ Lanes own_lanes(const Item& item, int head, int group) {
  Lanes lanes;
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    int lane = group * 64 + threadIdx.x % 128 / 32 * 16 + threadIdx.x % 32 / 4 + i * 8, row = lane / GROUP;
    lanes.lane[i] = lane;
    lanes.used[i] = row < item.tile.num_rows;
    lanes.position[i] = item.tile.start + row;
    lanes.cell[i] = ((u64)(item.tile.first_row + row) * HEADS + head * GROUP + lane % GROUP) * DIM + threadIdx.x % 4 * 2;
  }
  return lanes;
}

// Zeros for values of tokens after the last: an older request may have left something there that is not a number, and 0
// times that is not 0. Both warpgroups do it, each for itself.
__device__ __forceinline__ void clear_values(u32 stage, int num_tokens) {
  constexpr int PIECES = DIM / 8;
  for (int i = num_tokens * PIECES + (int)threadIdx.x % 128; i < BLOCK * PIECES; i += 128) {
    int token = i / PIECES, piece = i % PIECES;
    u32 at = stage + token / PAGE * PAIR_BYTES + VALUE_OFFSET + piece / 8 * HALF_BYTES + token % PAGE * LINE;
    store_shared(at + (piece % 8 ^ token % 8) * 16, make_uint4(0, 0, 0, 0));
  }
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

// Scores of a block: the first and the last eight tokens of each of its pages apart.
using Scores = float[2][BLOCK / 4];

__device__ __forceinline__ void score(Scores& scores, const u32 (&q)[DIM / 16][4], u32 stage) {
  products_begin();
#pragma unroll
  for (int i = 0; i < DIM / 16; ++i) {
    u32 at = stage + i / 4 * HALF_BYTES + i % 4 * 32;
    multiply_lines(scores[0], q[i], descriptor(at, 16, PAIR_BYTES), i > 0);
    multiply_lines(scores[1], q[i], descriptor(at + 8 * LINE, 16, PAIR_BYTES), i > 0);
  }
  products_end();
  products_wait();
}

// Tokens that a lane does not see: -infinity.
__device__ __forceinline__ void hide(Scores& scores, const Lanes& lanes, int first) {
#pragma unroll
  for (int half = 0; half < 2; ++half) {
#pragma unroll
    for (int i = 0; i < BLOCK / 4; ++i) {
      int token = first + i / 4 * PAGE + half * 8 + threadIdx.x % 4 * 2 + i % 2;
      if (token > lanes.position[i / 2 % 2]) scores[half][i] = NEGATIVE_INFINITY;
    }
  }
}

// Scores to weights, in the order in which a page's values are multiplied.
__device__ __forceinline__ void weigh(Running& run, Scores& scores, u32 (&weights)[BLOCK_PAGES][4]) {
  float shrink[2];
#pragma unroll
  for (int lane = 0; lane < 2; ++lane) {
    float largest = NEGATIVE_INFINITY;
#pragma unroll
    for (int i = 0; i < BLOCK / 4; i += 4)
#pragma unroll
      for (int j = 0; j < 2; ++j)
        largest = fmaxf(largest, fmaxf(scores[0][i + lane * 2 + j], scores[1][i + lane * 2 + j]));
    largest = fmaxf(largest, __shfl_xor_sync(~0u, largest, 1));
    largest = fmaxf(largest, __shfl_xor_sync(~0u, largest, 2));
    largest = fmaxf(run.largest[lane], largest * SCALE);
    float base = safe(largest), total = 0;
    shrink[lane] = power_of_two(run.largest[lane] - base);
    run.largest[lane] = largest;
#pragma unroll
    for (int i = 0; i < BLOCK / 4; i += 4) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        float first = power_of_two(fmaf(scores[half][i + lane * 2], SCALE, -base));
        float second = power_of_two(fmaf(scores[half][i + lane * 2 + 1], SCALE, -base));
        total += first + second;
        weights[i / 4][half * 2 + lane] = pack_pair(first, second);
      }
    }
    run.total[lane] = run.total[lane] * shrink[lane] + total;
  }
#pragma unroll
  for (int i = 0; i < DIM / 2; ++i) run.sums[i] *= shrink[i / 2 % 2];
}

__device__ __forceinline__ void gather(Running& run, const u32 (&weights)[BLOCK_PAGES][4], u32 stage) {
  products_begin();
#pragma unroll
  for (int page = 0; page < BLOCK_PAGES; ++page)
    multiply_columns(
        run.sums, weights[page], descriptor(stage + page * PAIR_BYTES + VALUE_OFFSET, HALF_BYTES, 8 * LINE), true);
  products_end();
  products_wait();
}

__device__ __forceinline__ void load_queries(u32 (&q)[DIM / 16][4], const Attention& a, const Lanes& lanes) {
#pragma unroll
  for (int i = 0; i < DIM / 16; ++i)
#pragma unroll
    for (int j = 0; j < 4; ++j)
      q[i][j] = lanes.used[j % 2] ? *(const u32*)(a.q + lanes.cell[j % 2] + i * 16 + j / 2 * 8) : 0;
}

__device__ __forceinline__ void store_result(const Attention& a, const Lanes& lanes, const Running& run) {
#pragma unroll
  for (int lane = 0; lane < 2; ++lane) {
    if (!lanes.used[lane]) continue;
    float scale = 1.0f / run.total[lane];
#pragma unroll
    for (int i = 0; i < DIM / 8; ++i)
      *(u32*)(a.out + lanes.cell[lane] + i * 8) =
          pack_pair(run.sums[i * 4 + lane * 2] * scale, run.sums[i * 4 + lane * 2 + 1] * scale);
  }
}

// Where a lane of one part of an item's tile is kept.
__device__ __forceinline__ u64 kept_lane(const Item& item, int head, int part, int lane) {
  if (item.is_single()) return (((u64)item.number * MAX_PARTS + part) * KV_HEADS + head) * GROUP + lane;
  return ((u64)(item.kept + part) * KV_HEADS + head) * LANES + lane;
}

__device__ __forceinline__ void keep_part(
    const Attention& a, const Item& item, int head, const Lanes& lanes, const Running& run) {
  float *sums = item.is_single() ? a.single_sums : a.sums, *stats = item.is_single() ? a.single_stats : a.stats;
#pragma unroll
  for (int lane = 0; lane < 2; ++lane) {
    if (!lanes.used[lane]) continue;
    u64 at = kept_lane(item, head, item.part, lanes.lane[lane]);
    float2* to = (float2*)(sums + at * DIM) + threadIdx.x % 4;
#pragma unroll
    for (int i = 0; i < DIM / 8; ++i) to[i * 4] = make_float2(run.sums[i * 4 + lane * 2], run.sums[i * 4 + lane * 2 + 1]);
    if (threadIdx.x % 4 == 0) *(float2*)(stats + at * 2) = make_float2(run.largest[lane], run.total[lane]);
  }
}

// The parts of a tile in their order.
__device__ __forceinline__ void merge_parts(
    const Attention& a, const Item& item, int head, const Lanes& lanes, Running& run) {
  const float *sums = item.is_single() ? a.single_sums : a.sums;
  const float *stats = item.is_single() ? a.single_stats : a.stats;
#pragma unroll
  for (int lane = 0; lane < 2; ++lane) {
    if (!lanes.used[lane]) continue;
    float largest = NEGATIVE_INFINITY, total = 0;
#pragma unroll
    for (int i = 0; i < DIM / 8; ++i) run.sums[i * 4 + lane * 2] = run.sums[i * 4 + lane * 2 + 1] = 0;
#pragma unroll 2
    for (int part = 0; part < item.num_parts; ++part) {
      u64 at = kept_lane(item, head, part, lanes.lane[lane]);
      float2 stat = load_fresh((const float2*)(stats + at * 2));
      const float2* from = (const float2*)(sums + at * DIM) + threadIdx.x % 4;
      float top = fmaxf(largest, stat.x);
      float shrink = power_of_two(largest - safe(top)), share = power_of_two(stat.x - safe(top));
      largest = top;
      total = total * shrink + stat.y * share;
#pragma unroll
      for (int i = 0; i < DIM / 8; ++i) {
        float2 value = load_fresh(from + i * 4);
        run.sums[i * 4 + lane * 2] = run.sums[i * 4 + lane * 2] * shrink + value.x * share;
        run.sums[i * 4 + lane * 2 + 1] = run.sums[i * 4 + lane * 2 + 1] * shrink + value.y * share;
      }
    }
    run.total[lane] = total;
  }
}

// Tell that this warpgroup's lanes of the part are kept; whether all parts of the tile now are.
template <int group>
__device__ __forceinline__ bool is_last_part(const Attention& a, Shared& shared, const Item& item, int head) {
  __threadfence();
  group_meets<group>();
  if (threadIdx.x % 128 == 0) {
    u32* arrivals = a.arrivals + (item.number * KV_HEADS + head) * 2 + group;
    bool last = atomicAdd(arrivals, 1u) + 1 == (u32)item.num_parts;
    if (last) *arrivals = 0;
    shared.is_last[group] = last;
    __threadfence();
  }
  group_meets<group>();
  return shared.is_last[group];
}

template <int group>
__device__ __forceinline__ void attend_item(Ring& ring, const Attention& a, Shared& shared, const Item& item, int head) {
  int num_blocks = (part_end(item) - item.begin + BLOCK - 1) / BLOCK;
  bool is_small = item.tile.num_rows * GROUP <= 64;
  Lanes lanes = own_lanes(item, head, group);
  Running run = {};
  run.largest[0] = run.largest[1] = NEGATIVE_INFINITY;
  u32 q[DIM / 16][4];
  if (group == 0 || !is_small) load_queries(q, a, lanes);
#pragma unroll 1
  for (int block = 0; block < num_blocks; ++block) {
    barrier_wait(ring.full_bar(), ring.parity);
    if (group == 0 || !is_small) {
      int first = item.begin + block * BLOCK;
      // Some lanes do not see all tokens, or there are not so many.
      bool is_edge = first + BLOCK > item.tile.start + 1;
      if (first + BLOCK > item.tile.end()) {
        clear_values(ring.stage(), item.tile.end() - first);
        group_meets<group>();
      }
      Scores scores;
      u32 weights[BLOCK_PAGES][4];
      score(scores, q, ring.stage());
      if (is_edge) hide(scores, lanes, first);
      weigh(run, scores, weights);
      gather(run, weights, ring.stage());
    }
    __syncwarp();
    if (threadIdx.x % 32 == 0) barrier_arrive(ring.empty_bar());
    ring.advance();
  }
  if (group == 1 && is_small) return;
#pragma unroll
  for (int lane = 0; lane < 2; ++lane) {
    run.total[lane] += __shfl_xor_sync(~0u, run.total[lane], 1);
    run.total[lane] += __shfl_xor_sync(~0u, run.total[lane], 2);
  }
  if (item.num_parts > 1) {
    keep_part(a, item, head, lanes, run);
    if (!is_last_part<group>(a, shared, item, head)) return;
    merge_parts(a, item, head, lanes, run);
  }
  store_result(a, lanes, run);
}

template <int group>
__device__ void attend_items(Ring ring, const Attention& a, Shared& shared) {
#pragma unroll 1
  for (u32 turn = 0;; ++turn) {
    u32 slot = turn & 1;
    barrier_wait(shared_address(&shared.item_full[slot]), turn >> 1 & 1);
    Item item = shared.items[slot];
    int head = shared.heads[slot];
    __syncwarp();
    if (threadIdx.x % 32 == 0) barrier_arrive(shared_address(&shared.item_empty[slot]));
    if (item.num_parts == 0) return;
    attend_item<group>(ring, a, shared, item, head);
  }
}

// Registers of the warps that compute and of those that stream: more than all may have alike.
template <int num>
__device__ __forceinline__ void take_registers() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(num));
}
template <int num>
__device__ __forceinline__ void leave_registers() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(num));
}

extern "C" __global__ void __launch_bounds__(384, 1) paged_attention(const __grid_constant__ Attention a) {
  extern __shared__ __align__(1024) unsigned char memory[];
  Shared& shared = *(Shared*)(memory + STAGES * STAGE_BYTES);
  Ring ring;
  ring.stages = shared_address(memory);
  ring.full = shared_address(shared.full);
  ring.empty = shared_address(shared.empty);
  if (ring.stages % 1024 != 0) __trap();
  if (threadIdx.x == 0) {
    for (int i = 0; i < STAGES; ++i) {
      barrier_init(ring.full + i * 8, 1);
      barrier_init(ring.empty + i * 8, CONSUMER_WARPS);
    }
    for (int i = 0; i < 2; ++i) {
      barrier_init(shared_address(&shared.item_full[i]), 1);
      barrier_init(shared_address(&shared.item_empty[i]), CONSUMER_WARPS);
    }
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
  }
  // A dependent launch: the next kernel may begin, and this one goes on once the one before is done. Otherwise the next one
  // may be a library's, which need not know that it began early.
  if (a.is_dependent) asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
  asm volatile("griddepcontrol.wait;" ::: "memory");
  __syncthreads();
  if (threadIdx.x < 128) {
    take_registers<232>();
    attend_items<0>(ring, a, shared);
  } else if (threadIdx.x < 256) {
    take_registers<232>();
    attend_items<1>(ring, a, shared);
  } else {
    leave_registers<40>();
    if (threadIdx.x < 288) stream_items(ring, a, shared);
  }
}
