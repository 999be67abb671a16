// One launch samples rows: a cluster of blocks for each, which keeps the row's adjusted logits in shared memory.
//
// 1. Adjust: every block its share of the ids; every warp tells the whole cluster its best one.
// 2. A row with a small top_k takes the short way (few.cuh): the k-th best of the warps' bests bounds the k-th id from
//    below, so the ids above it, hardly more than k, go to the first block, which does the rest alone. Two meetings.
// 3. Other rows take the long way (many.cuh): weights, a histogram, cuts by sorting the ids of one bin; up to eight meetings.
//
// Weights are integers, so no sum has an order, and the token is the one that `twinpath.sampling` defines, bit for bit.

// One thread of the cluster: the row's token goes to the results, to the slot's history and into its counts.
DEVICE void finish(const Args& args, const Row& row, const Shared& shared, int token, int code, float raw_best) {
  args.tokens[row.index] = token;
  args.codes[row.index] = code;
  args.history[row.slot * args.history_stride + row.position] = token;
  if (row.flags & HAS_PENALTIES) args.counts[row.slot * VOCAB + token] += 2;
  if (code == OK && row.num_top >= 0)
    args.scores[row.index * NUM_SCORES] = ((double)row.logits[token] - raw_best) - log_total(shared);
}

// The short way, as far as it goes: whether the row is finished. All blocks have to say so.
DEVICE bool sample_few(const Args& args, const Row& row, Shared& shared, float best, float raw_best, u64 random) {
  if (row.top_k <= 0 || row.top_k > MAX_FEW_K) return false;
  const int threshold = kth_of_groups(shared, shared.maxima, row.top_k);
  List list(shared.gathered, &shared.num_gathered);
  for (int j = 0; j < ITEMS / 4; ++j) {
    int at = (j * THREADS + threadIdx.x) * 4;
    float4 group = *(const float4*)(shared.x + at);
    const float x[4] = {group.x, group.y, group.z, group.w};
    for (int c = 0; c < 4; ++c)
      if (ordered_bits(x[c]) >= threshold && x[c] > -INFINITY)
        list.add(rank_key(x[c], cluster_rank() * CHUNK + at + c));
  }
  cluster_meets();
  if (*list.num > MAX_SORTED) return false;
  if (cluster_rank() == 0) {
    int token = draw_few(shared, row, random, best);
    if (threadIdx.x == 0) finish(args, row, shared, token, OK, raw_best);
  }
  return true;
}

DEVICE void sample_row(const Args& args, const Row& row, Shared& shared) {
  if (threadIdx.x == 0) shared.num_gathered = shared.num_raw = 0;
  adjust(args, row, shared);
  cluster_meets();
  const i64 best_key = best_of(shared.maxima);
  const float best = logit_of(best_key);
  const bool first = cluster_rank() == 0 && threadIdx.x == 0;
  if (best_key == BAD || best == -INFINITY) {
    if (first) finish(args, row, shared, 0, best_key == BAD ? NOT_FINITE : ALL_MASKED, 0);
    return;
  }
  float raw_best = 0;
  if (row.num_top >= 0) {
    raw_best = logit_of(best_of(shared.raw_maxima));
    int threshold = kth_of_groups(shared, shared.raw_maxima, min(max(row.num_top, 1), GROUPS));
    gather_logprobs(shared, row, raw_best, threshold);
    cluster_meets();
    tell_logprobs(args, row, shared, raw_best);
  }
  if (row.flags & IS_GREEDY) {
    if (first) finish(args, row, shared, id_of(best_key), OK, raw_best);
    return;
  }
  const u64 random = random64((u64)args.ints[row.slot * NUM_INTS + SEED], row.position);
  if (sample_few(args, row, shared, best, raw_best, random)) return;
  int turn = 0;
  Scale scale = {best, row.inverse_temperature};
  i64 cut = cut_many(shared, row, scale, turn);
  int token = draw_many(shared, row, scale, cut, random, turn);
  if (token >= 0) finish(args, row, shared, token, OK, raw_best);
}

KERNEL(sample_rows)(const Args args) {
  cluster_arrive();
  await_previous_kernel();
  Shared& shared = *(Shared*)shared_memory();
  const Row row = row_of(args, blockIdx.y);
  cluster_wait();  // All blocks run: each may write into the others' shared memory.
  if (row.slot >= 0) sample_row(args, row, shared);
  // A block's shared memory stays until the others have read it.
  cluster_arrive();
  cluster_wait();
}
