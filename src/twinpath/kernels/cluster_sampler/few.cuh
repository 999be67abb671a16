// The short way: the best k ids from a bound below the k-th, found without a look at the others; and the draw of few.

// A logit that at least `k` ids reach: the k-th best of the groups of warps, each standing for its best id. Each of its
// two calls in a row has a place of its own.
DEVICE int kth_of_groups(Shared& shared, int place, const i64* maxima, int k) {
  int* groups = shared.groups[place];
  int* threshold = &shared.thresholds[place];
  constexpr int EACH = NUM_WARPS / GROUPS, PARTS = THREADS / GROUPS < 32 ? THREADS / GROUPS : 32;
  for (int i = threadIdx.x; i < GROUPS; i += THREADS) {
    i64 best = LEAST;
    for (int j = 0; j < EACH; ++j) best = max(best, maxima[i * EACH + j]);
    groups[i] = (int)(best >> ID_BITS);
  }
  if (threadIdx.x == 0) *threshold = (int)0x80000000;
  __syncthreads();
  int group = threadIdx.x / PARTS, reached = 0;
  int own = group < GROUPS ? groups[group] : 0;
#pragma unroll 8
  for (int i = threadIdx.x % PARTS; i < GROUPS; i += PARTS) reached += groups[i] >= own;
  for (int step = PARTS / 2; step > 0; step /= 2) reached += __shfl_xor_sync(0xffffffffu, reached, step);
  if (group < GROUPS && threadIdx.x % PARTS == 0 && reached >= k) atomicMax(threshold, own);
  __syncthreads();
  return *threshold;
}

// This block's part of what the cluster finds for block `reader`.
struct List {
  Found& own;
  i64* keys;
  DEVICE List(Found& found, u32 reader) : own(found), keys(at_block(found.keys, reader) + cluster_rank() * PART_KEYS) {}
  DEVICE void add(i64 key) {
    u32 at = atomicAdd(&own.num_own, 1);
    if (at < PART_KEYS) keys[at] = key;
  }
  // All threads, when each has added its own: every block learns how many there are.
  DEVICE void end() {
    __syncthreads();
    tell_all(&own.nums[cluster_rank()], own.num_own);
  }
};

// After the cluster met: how many there are, or -1 when a part was too small.
DEVICE int num_found(const Found& found) {
  int num = 0;
  bool fits = true;
  for (int rank = 0; rank < CLUSTER; ++rank) num += found.nums[rank], fits &= found.nums[rank] <= PART_KEYS;
  return fits ? num : -1;
}

// The reader, all threads: the parts without their gaps, in `gathered`.
DEVICE void close_gaps(const Found& found, i64* gathered) {
  int part = threadIdx.x / PART_KEYS, at = threadIdx.x % PART_KEYS, before = 0;
  for (int rank = 0; rank < part; ++rank) before += found.nums[rank];
  if (at < found.nums[part]) gathered[before + at] = found.keys[threadIdx.x];
  __syncthreads();
}

// All threads of a block: `num` keys, best first, to `sorted`, and what `weight_of` says of each to `weights`.
template <typename WeightOf>
DEVICE void sort_keys(const i64* keys, int num, i64* sorted, u64* weights, WeightOf weight_of) {
  constexpr int PARTS = 4;
  for (int first = 0; first < num; first += THREADS / PARTS) {
    int at = first + threadIdx.x / PARTS, before = 0;
    i64 own = at < num ? keys[at] : LEAST;
    u64 weight = at < num ? weight_of(own) : 0;
#pragma unroll 4
    for (int i = threadIdx.x % PARTS; i < num; i += PARTS) before += keys[i] > own;
    for (int step = PARTS / 2; step > 0; step /= 2) before += __shfl_xor_sync(0xffffffffu, before, step);
    if (at < num && threadIdx.x % PARTS == 0) sorted[before] = own, weights[before] = weight;
  }
  __syncthreads();
}

DEVICE u64 warp_scan(u64 value) {
  for (int step = 1; step < 32; step *= 2) {
    u64 other = __shfl_up_sync(0xffffffffu, value, step);
    if (threadIdx.x % 32 >= step) value += other;
  }
  return value;
}

// One warp: weights of the first `num` of `shared.sorted` that top_p and min_p leave, 0 for the others, and their sum.
// `total`: the weight that top_p is a share of; 0: that of these ids.
DEVICE void keep_few(Shared& shared, const Row& row, int num, u64 total) {
  const int lane = threadIdx.x;
  if (total == 0) {
    for (int i = lane; i < num; i += 32) total += shared.weights[i];
    for (int step = 16; step > 0; step /= 2) total += __shfl_xor_sync(0xffffffffu, total, step);
  }
  const u64 needed = row.top_p < 1.0 ? needed_weight(total, row.top_p) : ~0ull;
  u64 before = 0, kept = 0;
  for (int first = 0; first < num; first += 32) {
    u64 weight = first + lane < num ? shared.weights[first + lane] : 0;
    u64 reached = before + warp_scan(weight);
    bool stays = reached - weight < needed && (double)weight >= row.min_weight;
    if (first + lane < num) shared.weights[first + lane] = stays ? weight : 0;
    kept += stays ? weight : 0;
    before = __shfl_sync(0xffffffffu, reached, 31);
  }
  for (int step = 16; step > 0; step /= 2) kept += __shfl_xor_sync(0xffffffffu, kept, step);
  if (lane == 0) shared.kept_weight = kept;
}

// The first block: the ids that were found, best first, and their weights.
DEVICE void sort_few(Shared& shared, const Row& row, int num, float best) {
  close_gaps(shared.best, shared.gathered);
  auto weight_of = [&](i64 key) { return weigh(exponent_of(logit_of(key), best, row.inverse_temperature)); };
  sort_keys(shared.gathered, num, shared.sorted, shared.weights, weight_of);
}

// The first block, after `sort_few`, when those are at least top_k ids, or all that top_p leaves, or all that can be
// drawn: both cuts, min_p and the draw.
DEVICE int draw_few(Shared& shared, const Row& row, int num, u64 total, u64 random) {
  constexpr int PARTS = 4;
  const int tid = threadIdx.x;
  if (row.top_k > 0) num = min(num, row.top_k);
  if (tid == 0) shared.token = VOCAB;
  if (tid < 32) keep_few(shared, row, num, total);
  __syncthreads();
  const u64 target = __umul64hi(random, shared.kept_weight);
  for (int first = 0; first < num; first += THREADS / PARTS) {
    int at = first + tid / PARTS;
    int id = at < num ? id_of(shared.sorted[at]) : -1;
    u64 running = 0;
#pragma unroll 4
    for (int i = tid % PARTS; i < num; i += PARTS)
      if (id_of(shared.sorted[i]) <= id) running += shared.weights[i];
    for (int step = PARTS / 2; step > 0; step /= 2) running += __shfl_xor_sync(0xffffffffu, running, step);
    if (at < num && tid % PARTS == 0 && shared.weights[at] > 0 && running > target) atomicMin(&shared.token, id);
  }
  __syncthreads();
  return shared.token;
}
