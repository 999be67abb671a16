// The short way: the best k ids from a bound below the k-th, found without a look at the others; and the draw of few.

// A logit that at least k ids reach: the k-th best of the groups of warps, each standing for its best id.
DEVICE int kth_of_groups(Shared& shared, const i64* maxima, int k) {
  constexpr int EACH = NUM_WARPS / GROUPS, PARTS = THREADS / GROUPS < 32 ? THREADS / GROUPS : 32;
  __syncthreads();
  for (int i = threadIdx.x; i < GROUPS; i += THREADS) {
    i64 best = LEAST;
    for (int j = 0; j < EACH; ++j) best = max(best, maxima[i * EACH + j]);
    shared.groups[i] = (int)(best >> ID_BITS);
  }
  if (threadIdx.x == 0) shared.threshold = (int)0x80000000;
  __syncthreads();
  int group = threadIdx.x / PARTS, reached = 0;
  int own = group < GROUPS ? shared.groups[group] : 0;
#pragma unroll 8
  for (int i = threadIdx.x % PARTS; i < GROUPS; i += PARTS) reached += shared.groups[i] >= own;
  for (int step = PARTS / 2; step > 0; step /= 2) reached += __shfl_xor_sync(0xffffffffu, reached, step);
  if (group < GROUPS && threadIdx.x % PARTS == 0 && reached >= k) atomicMax(&shared.threshold, own);
  __syncthreads();
  return shared.threshold;
}

// Sends `num` ranks, found by this thread, to a list in the first block, as far as they fit.
struct List {
  i64* keys;
  u32* num;
  DEVICE List(i64* own_keys, u32* own_num) : keys(at_block(own_keys, 0)), num(at_block(own_num, 0)) {}
  DEVICE void add(i64 key) {
    u32 at = atomicAdd(num, 1);
    if (at < MAX_SORTED) keys[at] = key;
  }
};

// All threads of the first block: `num` keys, best first, to `sorted`.
DEVICE void sort_keys(const i64* keys, int num, i64* sorted) {
  constexpr int PARTS = 4;
  for (int first = 0; first < num; first += THREADS / PARTS) {
    int at = first + threadIdx.x / PARTS, before = 0;
    i64 own = at < num ? keys[at] : LEAST;
    for (int i = threadIdx.x % PARTS; i < num; i += PARTS) before += keys[i] > own;
    for (int step = PARTS / 2; step > 0; step /= 2) before += __shfl_xor_sync(0xffffffffu, before, step);
    if (at < num && threadIdx.x % PARTS == 0) sorted[before] = own;
  }
  __syncthreads();
}

// The first block, when `shared.gathered` has the best ids, at least top_k of them or all that can be drawn: both cuts,
// min_p and the draw.
DEVICE int draw_few(Shared& shared, const Row& row, u64 random, float best) {
  constexpr int PARTS = 4;
  sort_keys(shared.gathered, shared.num_gathered, shared.sorted);
  const int num = min((int)shared.num_gathered, row.top_k), tid = threadIdx.x;
  u64 weight = 0, total, kept_total;
  if (tid < num) weight = weigh(exponent_of(logit_of(shared.sorted[tid]), best, row.inverse_temperature));
  u64 before = block_scan(shared, weight, total) - weight;
  if (row.top_p < 1.0 && before >= needed_weight(total, row.top_p)) weight = 0;
  if ((double)weight < row.min_weight) weight = 0;
  shared.weights[tid] = weight;
  if (tid == 0) shared.token = VOCAB;
  block_scan(shared, weight, kept_total);
  const u64 target = __umul64hi(random, kept_total);
  for (int first = 0; first < num; first += THREADS / PARTS) {
    int at = first + tid / PARTS;
    int id = at < num ? id_of(shared.sorted[at]) : -1;
    u64 running = 0;
    for (int i = tid % PARTS; i < num; i += PARTS)
      if (id_of(shared.sorted[i]) <= id) running += shared.weights[i];
    for (int step = PARTS / 2; step > 0; step /= 2) running += __shfl_xor_sync(0xffffffffu, running, step);
    if (at < num && tid % PARTS == 0 && shared.weights[at] > 0 && running > target) atomicMin(&shared.token, id);
  }
  __syncthreads();
  return shared.token;
}
