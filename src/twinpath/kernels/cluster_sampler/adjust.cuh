// The settings that change logits, and the best id.

DEVICE Row row_of(const Args& args, int index) {
  Row row;
  row.index = index;
  row.logits = args.logits + index * args.logits_stride;
  row.slot = args.row_slots[index];
  row.position = args.row_positions[index];
  row.mask = args.row_masks[index];
  if (row.slot < 0) return row;
  const double* floats = args.floats + row.slot * NUM_FLOATS;
  const i64* ints = args.ints + row.slot * NUM_INTS;
  row.seed = (u64)ints[SEED];
  row.flags = (int)ints[FLAGS];
  row.top_k = (int)ints[TOP_K];
  row.num_top = (int)ints[NUM_TOP];
  row.is_short = row.position - ints[NUM_PROMPT] < ints[MIN_TOKENS];
  row.inverse_temperature = floats[INVERSE_TEMPERATURE];
  row.top_p = floats[TOP_P];
  row.min_weight = floats[MIN_WEIGHT];
  row.repetition = floats[REPETITION];
  row.frequency = floats[FREQUENCY];
  row.presence = floats[PRESENCE];
  return row;
}

// To float32; what is finite stays finite.
DEVICE float to_float32(double value) {
  constexpr double LARGEST = 3.4028234663852886e38;
  if (value == -INFINITY) return -INFINITY;
  return (float)fmin(fmax(value, -LARGEST), LARGEST);
}

// Four values from `id` on; `other` beyond the vocabulary.
template <typename V, typename T>
DEVICE void load_four(T* out, const T* from, int id, T other) {
  if (ALIGNED && id + 3 < VOCAB) {
    V group = *(const V*)(from + id);
    out[0] = group.x, out[1] = group.y, out[2] = group.z, out[3] = group.w;
  } else {
    for (int c = 0; c < 4; ++c) out[c] = id + c < VOCAB ? from[id + c] : other;
  }
}

DEVICE u32 four_bits(const u32* words, int id) { return id < VOCAB ? words[id / 32] >> (id % 32) & 15 : 0; }

DEVICE float penalized(float x, int seen, const Row& row) {
  if (seen == 0) return x;
  double wide = x;
  x = to_float32(wide > 0 ? __ddiv_rn(wide, row.repetition) : __dmul_rn(wide, row.repetition));
  int times = seen >> 1;
  if (times == 0) return x;
  double less = __dsub_rn((double)x, __dmul_rn(row.frequency, (double)times));
  return to_float32(__dsub_rn(less, row.presence));
}

// Loads of all groups of four are on their way before the first is used: the raw logits before the row's settings are
// known.
struct Groups {
  float x[ITEMS / 4][4];
  int seen[ITEMS / 4][4];
  u32 biased[ITEMS / 4], kept[ITEMS / 4];
};

DEVICE void load_logits(const Args& args, int index, Groups& groups) {
  const float* logits = args.logits + index * args.logits_stride;
#pragma unroll
  for (int j = 0; j < ITEMS / 4; ++j)
    load_four<float4>(groups.x[j], logits, cluster_rank() * CHUNK + (j * THREADS + threadIdx.x) * 4, -INFINITY);
}

DEVICE void load_tables(const Args& args, const Row& row, int first, Groups& groups) {
  bool penalize = row.flags & HAS_PENALTIES, bias = row.flags & HAS_BIAS;
  bool stop = row.mask < 0 && (row.flags & HAS_STOPS) && row.is_short;
#pragma unroll
  for (int j = 0; j < ITEMS / 4; ++j) {
    int id = first + (j * THREADS + threadIdx.x) * 4;
    if (penalize) load_four<int4>(groups.seen[j], args.counts + row.slot * VOCAB, id, 0);
    groups.biased[j] = bias ? four_bits(args.biased + row.slot * WORDS, id) : 0;
    groups.kept[j] = 15;
    if (row.mask >= 0) groups.kept[j] = four_bits(args.allowed + (i64)row.mask * WORDS, id);
    if (stop) groups.kept[j] = ~four_bits(args.stops + row.slot * WORDS, id);
  }
}

// Adjusted logits of this block's ids to shared memory, and to every block what each warp found best.
DEVICE void adjust(const Args& args, const Row& row, Shared& shared, Groups& groups) {
  const int first = cluster_rank() * CHUNK;
  load_tables(args, row, first, groups);
  i64 best = LEAST, raw_best = LEAST;
  bool bad = false;
#pragma unroll
  for (int j = 0; j < ITEMS / 4; ++j) {
    int at = (j * THREADS + threadIdx.x) * 4;
#pragma unroll
    for (int c = 0; c < 4; ++c) {
      int id = first + at + c;
      float x = groups.x[j][c];
      bad |= !(x < INFINITY);
      if (row.num_top >= 0) raw_best = max(raw_best, rank_key(x == 0 ? 0.0f : x, id));
      if (groups.biased[j] >> c & 1) x = to_float32(__dadd_rn((double)x, args.bias[row.slot * VOCAB + id]));
      if (row.flags & HAS_PENALTIES) x = penalized(x, groups.seen[j][c], row);
      if (!(groups.kept[j] >> c & 1)) x = -INFINITY;
      x = x == 0 ? 0.0f : x;  // minus zero ranks as zero
      best = max(best, rank_key(x, id));
      shared.x[at + c] = x;
    }
  }
  best = warp_max(bad ? BAD : best);
  int lane = threadIdx.x % 32, warp = cluster_rank() * WARPS + threadIdx.x / 32;
  if (lane < CLUSTER) *at_block(&shared.maxima[warp], lane) = best;
  if (row.num_top >= 0) {
    raw_best = warp_max(raw_best);
    if (lane < CLUSTER) *at_block(&shared.raw_maxima[warp], lane) = raw_best;
  }
}

DEVICE i64 best_of(const i64* maxima) {
  i64 best = LEAST;
  for (int i = threadIdx.x % 32; i < NUM_WARPS; i += 32) best = max(best, maxima[i]);
  return warp_max(best);
}
