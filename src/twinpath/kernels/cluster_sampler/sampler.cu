// One launch samples rows: a cluster of blocks for each, which keeps the row's adjusted logits in shared memory.
//
// 1. Adjust: every block its share of the ids; every warp tells the whole cluster its best one.
// 2. A row with a small top_k takes the short way (few.cuh): the k-th best of the warps' bests bounds the k-th id from
//    below, so the ids above it, hardly more than k, go to the first block, which does the rest alone. Two meetings. With
//    top_p alone the same is tried, when those ids weigh enough of the whole row.
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

// Ids among which the best k are, to the first block's list. `cluster_meets` completes it.
DEVICE void gather_best(Shared& shared, int threshold) {
  List list(shared.best, 0);
  for (int j = 0; j < ITEMS / 4; ++j) {
    int at = (j * THREADS + threadIdx.x) * 4;
    float4 group = *(const float4*)(shared.x + at);
    const float x[4] = {group.x, group.y, group.z, group.w};
    for (int c = 0; c < 4; ++c)
      if (ordered_bits(x[c]) >= threshold && x[c] > -INFINITY)
        list.add(rank_key(x[c], cluster_rank() * CHUNK + at + c));
  }
  list.end();
}

// Log-probabilities, and the token of a row that is greedy or leaves few ids. False: the long way is needed.
DEVICE bool sample_few(const Args& args, const Row& row, Shared& shared, i64 best_key, float raw_best, int& turn) {
  const float best = logit_of(best_key);
  const bool scores = row.num_top >= 0, greedy = row.flags & IS_GREEDY;
  // Without top_k, top_p often leaves as few: if they weigh enough of the whole.
  const bool sums = !greedy && row.top_k <= 0 && row.top_p < 1.0;
  const bool few = sums || (!greedy && row.top_k > 0 && row.top_k <= MAX_FEW_K);
  int threshold = 0;
  if (few) {
    threshold = kth_of_groups(shared, 0, shared.maxima, sums ? MAX_FEW_K * 3 / 4 : row.top_k);
    gather_best(shared, threshold);
  }
  if (scores) {
    int k = min(max(row.num_top, 1), GROUPS);
    gather_logprobs(shared, row, raw_best, kth_of_groups(shared, 1, shared.raw_maxima, k));
  }
  u64 total = 0;
  bool is_enough = true;
  if (sums)
    total = weigh_row(shared, row, Scale{best, row.inverse_temperature}, threshold, is_enough, turn);
  else if (scores || few)
    cluster_meets();
  if (scores) tell_logprobs(args, row, shared, raw_best);
  const bool first = cluster_rank() == 0;
  if (greedy) {
    if (first && threadIdx.x == 0) finish(args, row, shared, id_of(best_key), OK, raw_best);
    return true;
  }
  const int num = few ? num_found(shared.best) : -1;
  if (num < 0 || !is_enough) return false;
  if (first) {
    sort_few(shared, row, num, best);
    int token = draw_few(shared, row, num, total, random64(row.seed, row.position));
    if (threadIdx.x == 0) finish(args, row, shared, token, OK, raw_best);
  }
  return true;
}

DEVICE void sample_row(const Args& args, const Row& row, Shared& shared, Groups& groups) {
  if (threadIdx.x == 0) shared.num_gathered = shared.best.num_own = shared.scored.num_own = 0;
  adjust(args, row, shared, groups);
  cluster_meets();
  const i64 best_key = best_of(shared.maxima);
  if (best_key == BAD || logit_of(best_key) == -INFINITY) {
    if (cluster_rank() == 0 && threadIdx.x == 0)
      finish(args, row, shared, 0, best_key == BAD ? NOT_FINITE : ALL_MASKED, 0);
    return;
  }
  const float raw_best = row.num_top >= 0 ? logit_of(best_of(shared.raw_maxima)) : 0;
  int turn = 0;
  if (sample_few(args, row, shared, best_key, raw_best, turn)) return;
  Scale scale = {logit_of(best_key), row.inverse_temperature};
  i64 cut = cut_many(shared, row, scale, turn);
  int token = draw_many(shared, row, scale, cut, random64(row.seed, row.position), turn);
  if (token >= 0) finish(args, row, shared, token, OK, raw_best);
}

KERNEL(sample_rows)(const Args args) {
  cluster_arrive();
  await_previous_kernel();
  Shared& shared = *(Shared*)shared_memory();
  Groups groups;
  load_logits(args, blockIdx.y, groups);
  const Row row = row_of(args, blockIdx.y);
  cluster_wait();  // All blocks run: each may write into the others' shared memory.
  if (row.slot >= 0) sample_row(args, row, shared, groups);
  // A block's shared memory stays until the others have read it.
  cluster_arrive();
  cluster_wait();
}
