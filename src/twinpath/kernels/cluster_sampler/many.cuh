// The long way, for any settings: every id is weighed; a histogram over log-probability says where a cut lies, only the
// ids there are sorted, and those that remain are drawn from where they are.

// This thread's ids lie together, so that running weights follow the ids.
template <typename Use>
DEVICE void each_own(const Shared& shared, Use use) {
#pragma unroll 2
  for (int i = 0; i < ITEMS; i += 4) {
    int at = threadIdx.x * ITEMS + i;
    float4 x = *(const float4*)(shared.x + at);
    int id = cluster_rank() * CHUNK + at;
    use(x.x, id), use(x.y, id + 1), use(x.z, id + 2), use(x.w, id + 3);
  }
}

struct Scale {
  float best;
  double inverse_temperature;
  DEVICE double exponent(float x) const { return exponent_of(x, best, inverse_temperature); }
};

// What top_p is a share of, of the whole row, and whether the logits from `threshold` on weigh that share. One meeting.
DEVICE u64 weigh_row(Shared& shared, const Row& row, const Scale& scale, int threshold, bool& is_enough, int& turn) {
  u64 sum = 0, high = 0, high_sum;
  each_own(shared, [&](float x, int) {
    u64 weight = weigh(scale.exponent(x));
    sum += weight;
    high += ordered_bits(x) >= threshold ? weight : 0;
  });
  block_scan(shared, high, high_sum);
  tell_all(&shared.part_weights[cluster_rank()], high_sum);
  const u64 total = cluster_sum(shared, sum, turn);
  high = 0;
  for (int rank = 0; rank < CLUSTER; ++rank) high += shared.part_weights[rank];
  is_enough = high >= needed_weight(total, row.top_p);
  return total;
}

DEVICE void fill_histogram(Shared& shared, const Scale& scale) {
  for (int i = threadIdx.x; i < NUM_BINS; i += THREADS) shared.low[i] = shared.high[i] = shared.counts[i] = 0;
  __syncthreads();
  each_own(shared, [&](float x, int) {
    double exponent = scale.exponent(x);
    u64 weight = weigh(exponent);
    if (weight == 0) return;
    int bin = bin_of(exponent);
    u32 low = (u32)weight, high = (u32)(weight >> 32);
    u32 before = atomicAdd(&shared.low[bin], low);
    high += before + low < before;
    if (high) atomicAdd(&shared.high[bin], high);
    atomicAdd(&shared.counts[bin], 1u);
  });
}

struct Part {
  u64 weight, count;
};

// Bin `threadIdx.x` of this block's part, summed over the cluster, whose histograms are complete.
DEVICE Part merge_part(Shared& shared) {
  Part own = {0, 0};
  if (threadIdx.x < PART_BINS)
    for (int rank = 0; rank < CLUSTER; ++rank) {
      Shared& other = *at_block(&shared, rank);
      int bin = cluster_rank() * PART_BINS + threadIdx.x;
      own.weight += ((u64)other.high[bin] << 32) + other.low[bin];
      own.count += other.counts[bin];
    }
  u64 weight, count;
  block_scan(shared, own.weight, weight);
  block_scan(shared, own.count, count);
  tell_all(&shared.part_weights[cluster_rank()], weight);
  tell_all(&shared.part_counts[cluster_rank()], count);
  cluster_meets();
  return own;
}

// What a cut measures: ids or their weight.
enum Measure { COUNT, WEIGHT };

// The bin in which `needed`, at most what there is, is reached.
DEVICE Border find_border(Shared& shared, const Part& own, Measure measure, u64 needed) {
  u64 before = 0, weight_before = 0, total;
  for (u32 rank = 0; rank < cluster_rank(); ++rank) {
    before += measure == COUNT ? shared.part_counts[rank] : shared.part_weights[rank];
    weight_before += shared.part_weights[rank];
  }
  u64 value = measure == COUNT ? own.count : own.weight;
  u64 reached = before + block_scan(shared, value, total);
  u64 weight_reached = weight_before + block_scan(shared, own.weight, total);
  if (reached >= needed && reached - value < needed) {
    Border border = {reached - value, weight_reached - own.weight, (int)(cluster_rank() * PART_BINS + threadIdx.x)};
    for (int rank = 0; rank < CLUSTER; ++rank) *at_block(&shared.border, rank) = border;
  }
  if (cluster_rank() == 0 && threadIdx.x == 0) shared.num_gathered = 0;
  cluster_meets();
  return shared.border;
}

// The highest border at or above which `remaining` of the bin's ids is reached, by bisection: for flat or equal logits.
DEVICE Cut bisect(Shared& shared, const Scale& scale, int bin, i64 cut, Measure measure, u64 remaining, int& turn) {
  i64 low = LEAST, high = rank_key(scale.best, 0) + 1;
  auto sum_from = [&](i64 key, Measure what) {
    u64 sum = 0;
    each_own(shared, [&](float x, int id) {
      i64 own = rank_key(x, id);
      double exponent = scale.exponent(x);
      if (own < key || own < cut || exponent < -BIN_SPAN || bin_of(exponent) != bin) return;
      u64 weight = weigh(exponent);
      sum += what == WEIGHT ? weight : weight > 0;
    });
    return cluster_sum(shared, sum, turn);
  };
  while (high - low > 1) {
    i64 middle = low + (high - low) / 2;
    if (sum_from(middle, measure) >= remaining)
      low = middle;
    else
      high = middle;
  }
  return {low, sum_from(low, WEIGHT)};
}

// The first block, whose list is complete: the lowest rank that stays, to every block.
DEVICE void cut_list(Shared& shared, const Scale& scale, Measure measure, u64 remaining, u64 weight_before) {
  const int num = shared.num_gathered, tid = threadIdx.x;
  auto weight_of = [&](i64 key) { return weigh(scale.exponent(logit_of(key))); };
  sort_keys(shared.gathered, num, shared.sorted, shared.weights, weight_of);
  u64 weight = tid < num ? shared.weights[tid] : 0, total;
  u64 value = measure == COUNT ? tid < num : weight;
  u64 reached = block_scan(shared, value, total);
  u64 weight_reached = block_scan(shared, weight, total);
  if (tid < num && reached >= remaining && reached - value < remaining) {
    Cut cut = {shared.sorted[tid], weight_before + weight_reached};
    for (int rank = 0; rank < CLUSTER; ++rank) *at_block(&shared.cut, rank) = cut;
  }
}

// The shortest run by rank, of ids at or above `cut`, in which `needed` is reached: its last rank, and its weight.
DEVICE Cut cut_at(Shared& shared, const Scale& scale, const Part& own, i64 cut, Measure measure, u64 needed, int& turn) {
  Border border = find_border(shared, own, measure, needed);
  i64* list = at_block(shared.gathered, 0);
  u32* num = at_block(&shared.num_gathered, 0);
  each_own(shared, [&](float x, int id) {
    double exponent = scale.exponent(x);
    if (exponent < -BIN_SPAN || bin_of(exponent) != border.bin) return;
    i64 key = rank_key(x, id);
    if (key < cut || weigh(exponent) == 0) return;
    u32 at = atomicAdd(num, 1);
    if (at < MAX_SORTED) list[at] = key;
  });
  cluster_meets();
  if (*num <= MAX_SORTED) {
    if (cluster_rank() == 0) cut_list(shared, scale, measure, needed - border.before, border.weight_before);
    cluster_meets();
    return shared.cut;
  }
  Cut found = bisect(shared, scale, border.bin, cut, measure, needed - border.before, turn);
  found.weight += border.weight_before;
  return found;
}

// The lowest rank that top_k and top_p leave.
DEVICE i64 cut_many(Shared& shared, const Row& row, const Scale& scale, int& turn) {
  if (row.top_k <= 0 && row.top_p >= 1.0) return LEAST;
  fill_histogram(shared, scale);
  cluster_meets();
  Part own = merge_part(shared);
  Cut cut = {LEAST, 0};
  u64 count = 0;
  for (int rank = 0; rank < CLUSTER; ++rank) count += shared.part_counts[rank], cut.weight += shared.part_weights[rank];
  if (row.top_k > 0 && row.top_k < count) cut = cut_at(shared, scale, own, cut.key, COUNT, row.top_k, turn);
  if (row.top_p < 1.0)
    cut = cut_at(shared, scale, own, cut.key, WEIGHT, needed_weight(cut.weight, row.top_p), turn);
  return cut.key;
}

// All blocks: the draw, in ascending id order, among ids at or above the cut. One thread of the cluster gets the token,
// the others -1.
DEVICE int draw_many(Shared& shared, const Row& row, const Scale& scale, i64 cut, u64 random, int& turn) {
  auto kept = [&](float x, int id) -> u64 {
    u64 weight = rank_key(x, id) >= cut ? weigh(scale.exponent(x)) : 0;
    return (double)weight >= row.min_weight ? weight : 0;
  };
  u64 own = 0, total;
  each_own(shared, [&](float x, int id) { own += kept(x, id); });
  const int parity = turn & 1;
  u64 before = block_scan(shared, own, total) - own;
  const u64 target = __umul64hi(random, cluster_sum(shared, own, turn));
  for (u32 rank = 0; rank < cluster_rank(); ++rank) before += shared.sums[parity][rank];
  if (target < before || target >= before + own) return -1;
  int token = -1;
  u64 running = before;
  each_own(shared, [&](float x, int id) {
    running += kept(x, id);
    if (token < 0 && running > target) token = id;
  });
  return token;
}
