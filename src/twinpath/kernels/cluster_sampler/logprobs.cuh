// Log-probabilities of the raw logits: log-softmax at the token, and the best ids.

// The sum of exp(x - best) and, in the scorer's list, ids among which the best `num_top` are. Each block's sum goes to
// every block; `cluster_meets` completes both.
DEVICE void gather_logprobs(Shared& shared, const Row& row, float best, int threshold) {
  const int first = cluster_rank() * CHUNK;
  List list(shared.scored, SCORER);
  float sum = 0;
  for (int j = 0; j < ITEMS / 4; ++j) {
    int id = first + (j * THREADS + threadIdx.x) * 4;
    float x[4];
    load_four<float4>(x, row.logits, id, -INFINITY);
    for (int c = 0; c < 4; ++c) {
      sum += expf(x[c] - best);
      float value = x[c] == 0 ? 0.0f : x[c];
      if (row.num_top > 0 && value > -INFINITY && ordered_bits(value) >= threshold) list.add(rank_key(value, id + c));
    }
  }
  double wide = sum;
  for (int step = 16; step > 0; step /= 2) wide += __shfl_xor_sync(0xffffffffu, wide, step);
  __syncthreads();
  if (threadIdx.x % 32 == 0) ((double*)shared.warp_sums)[threadIdx.x / 32] = wide;
  __syncthreads();
  wide = 0;
  for (int i = 0; i < WARPS; ++i) wide += ((double*)shared.warp_sums)[i];
  tell_all(&shared.exp_sums[cluster_rank()], wide);
  list.end();
}

DEVICE double log_total(const Shared& shared) {
  double sum = 0;
  for (int rank = 0; rank < CLUSTER; ++rank) sum += shared.exp_sums[rank];
  return log(sum);
}

DEVICE void tell_top(const Args& args, const Row& row, const Shared& shared, int place, i64 key, float best) {
  float x = logit_of(key);
  bool is_there = key > LEAST && x > -INFINITY;
  double* scores = args.scores + row.index * NUM_SCORES + 1;
  scores[place] = is_there ? ((double)x - best) - log_total(shared) : 0;
  scores[MAX_TOP + place] = is_there ? id_of(key) : -1;
}

// All blocks, after they met. When the list has not all, since many logits are equal: one place after another.
DEVICE void tell_logprobs(const Args& args, const Row& row, Shared& shared, float best) {
  int num = num_found(shared.scored);
  if (num >= 0) {
    if (cluster_rank() != SCORER) return;
    close_gaps(shared.scored, shared.gathered);
    sort_keys(shared.gathered, num, shared.sorted, shared.weights, [](i64) { return 0ull; });
    int place = threadIdx.x;
    if (place < row.num_top) tell_top(args, row, shared, place, place < num ? shared.sorted[place] : LEAST, best);
    __syncthreads();
    return;
  }
  i64 last = BAD;
  for (int place = 0; place < row.num_top; ++place) {
    i64 own = LEAST;
    for (int at = threadIdx.x; at < CHUNK; at += THREADS) {
      int id = cluster_rank() * CHUNK + at;
      float x = id < VOCAB ? row.logits[id] : -INFINITY;
      i64 key = rank_key(x == 0 ? 0.0f : x, id);
      if (key < last) own = max(own, key);
    }
    tell_all(&shared.sums[(place + 1) & 1][cluster_rank()], (u64)block_max(shared, own));
    cluster_meets();
    last = LEAST;
    for (int rank = 0; rank < CLUSTER; ++rank) last = max(last, (i64)shared.sums[(place + 1) & 1][rank]);
    if (cluster_rank() == 0 && threadIdx.x == 0) tell_top(args, row, shared, place, last, best);
  }
  cluster_meets();  // What follows uses the same sums.
}
