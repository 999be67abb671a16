// Attention of the new token of each row over its pages, split by split.

__device__ __forceinline__ void load_eight(float (&x)[8], const float* at) {
#pragma unroll
  for (int i = 0; i < 8; i += 4) {
    float4 four = load_fresh((const float4*)(at + i));
    x[i] = four.x, x[i + 1] = four.y, x[i + 2] = four.z, x[i + 3] = four.w;
  }
}

// Norm and rotation of this lane's eight values of one head; angles: eight cosines, eight sines.
__device__ __forceinline__ void norm_and_rotate(float (&x)[8], const float (&gain)[8], const float (&angles)[2][8]) {
  int lane = threadIdx.x % HEAD_LANES;
#if HEAD_NORMS
  float square = 0;
#pragma unroll
  for (int i = 0; i < 8; ++i) square += x[i] * x[i];
#pragma unroll
  for (int offset = HEAD_LANES / 2; offset > 0; offset /= 2) square += __shfl_xor_sync(~0u, square, offset);
  float scale = rsqrtf(square / DIM + EPS);
#pragma unroll
  for (int i = 0; i < 8; ++i) x[i] *= scale * gain[i];
#endif
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    float other = __shfl_xor_sync(~0u, x[i], HEAD_LANES / 2);
    x[i] = x[i] * angles[0][i] + (lane < HEAD_LANES / 2 ? -other : other) * angles[1][i];
  }
}

__device__ __forceinline__ uint4 pack(const float (&x)[8]) {
  return make_uint4(
      to_bf16_pair(x[0], x[1]), to_bf16_pair(x[2], x[3]), to_bf16_pair(x[4], x[5]), to_bf16_pair(x[6], x[7]));
}

// One warp: the queries of one task, and where it holds the new token also its key and value, which it appends. All loads
// come before the first use of any: each costs a round trip, and the cluster waits.
__device__ void prepare_task(const Step& step, const Layer& layer, Shared& shared, int slot, const Task& task) {
  constexpr int HEADS_AT_ONCE = 32 / HEAD_LANES, ROUNDS = (GROUP + HEADS_AT_ONCE - 1) / HEADS_AT_ONCE;
  AttentionScratch& scratch = shared.attention;
  int lane = threadIdx.x % 32, part = lane % HEAD_LANES, position = shared.positions[task.row];
  bool is_holder = task.begin <= position && position < task.end;
  const float* projected = step.projected + task.row * QKV_ROWS + part * 8;
  const float* rope = layer.rope + (u64)position * DIM + lane % (HEAD_LANES / 2) * 8;
  float angles[2][8], q[ROUNDS][8], k[8] = {}, v[8] = {}, q_gain[8], k_gain[8];
  int page = is_holder ? load_fresh(step.block_tables + task.row * step.max_pages + position / PAGE) : 0;
#pragma unroll
  for (int i = 0; i < ROUNDS; ++i)
    load_eight(q[i], projected + (task.head * GROUP + min(i * HEADS_AT_ONCE + lane / HEAD_LANES, GROUP - 1)) * DIM);
  if (is_holder) {
    load_eight(k, projected + (HEADS + task.head) * DIM);
    load_eight(v, projected + (HEADS + KV_HEADS + task.head) * DIM);
  }
  load_eight(angles[0], rope);
  load_eight(angles[1], rope + DIM / 2);
#if HEAD_NORMS
  load_eight(q_gain, layer.q_gain + part * 8);
  load_eight(k_gain, layer.k_gain + part * 8);
#endif
#pragma unroll
  for (int i = 0; i < ROUNDS; ++i) {
    int g = i * HEADS_AT_ONCE + lane / HEAD_LANES;
    norm_and_rotate(q[i], q_gain, angles);
    if (g < GROUP) *(uint4*)&scratch.q[slot][g * DIM + part * 8] = pack(q[i]);
  }
  if (!is_holder) return;
  norm_and_rotate(k, k_gain, angles);
  u64 at = (((u64)page * KV_HEADS + task.head) * PAGE + position % PAGE) * DIM + part * 8;
  if (lane < HEAD_LANES) {
    *(uint4*)&scratch.k[slot][part * 8] = *(uint4*)(layer.k + at) = pack(k);
    *(uint4*)&scratch.v[slot][part * 8] = *(uint4*)(layer.v + at) = pack(v);
  }
}

// Running softmax of one warp's tokens. Lane l holds query head l / 4 (of eight, GROUP are real) in the layout of `mma`:
// q in blocks of 32 values; sums are transposed, values l / 4 and 8 more of every 16, of heads 2 (l % 4) and the next.
// `total` is this lane's share.
struct Running {
  uint4 q[DIM / 32];
  float sums[DIM / 16][4], largest, total;
};

__device__ __forceinline__ float safe(float largest) { return largest == NEGATIVE_INFINITY ? 0.0f : largest; }

// Address of 16-byte piece `piece` of the key of token `local` + `row` of a stage; `local` is a multiple of WARP_TOKENS,
// `row` less than that.
__device__ __forceinline__ u32 token_piece(u32 stage, int local, int row, int piece) {
  u32 group = stage + local / PAGE * PAIR_BYTES + local % PAGE * LINE;
  return group + (row * LINE + piece / 8 * (PAGE * LINE) + (piece % 8 ^ row % 8) * 16);
}

// Put the new token into the stage, and zeros for the values of tokens outside: an older request may have left
// something there that is not a number, and 0 times that is not 0. Only this warp reads these tokens.
__device__ __forceinline__ void amend_tokens(
    const AttentionScratch& scratch, int slot, u32 stage, int first_token, int local, const Task& task, int position) {
  int lane = threadIdx.x % 32, part = lane % HEAD_LANES;
#pragma unroll 1
  for (int i = lane / HEAD_LANES; i < WARP_TOKENS; i += 32 / HEAD_LANES) {
    int token = first_token + local + i;
    bool inside = task.begin <= token && token < task.end, fresh = inside && token == position;
    uint4 value = fresh ? *(const uint4*)&scratch.v[slot][part * 8] : make_uint4(0, 0, 0, 0);
    if (fresh) store_shared(token_piece(stage, local, i, part), *(const uint4*)&scratch.k[slot][part * 8]);
    if (fresh || !inside) store_shared(token_piece(stage + VALUE_OFFSET, local, i, part), value);
  }
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
  __syncwarp();
}

// Sixteen tokens of a stage, from `local` on: two blocks of eight, each in the order of `own_line`.
__device__ __forceinline__ void attend_tokens(Running& run, u32 stage, int first_token, int local, const Task& task) {
  int lane = threadIdx.x % 32;
  float scores[2][4] = {};
#pragma unroll
  for (int i = 0; i < DIM / 32; ++i) {
#pragma unroll
    for (int block = 0; block < 2; ++block) {
      uint4 k = load_shared(token_piece(stage, local, block * 8 + own_line(), i * 4 + lane % 4));
      multiply(scores[block], run.q[i].x, 0, run.q[i].y, 0, k.x, k.y);
      multiply(scores[block], run.q[i].z, 0, run.q[i].w, 0, k.z, k.w);
    }
  }
  // Columns 2 (l % 4) and the next of a block are its tokens l % 4 and l % 4 + 4.
  float share[4], largest = run.largest;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    int token = first_token + local + lane % 4 + i * 4;
    share[i] = token >= task.begin && token < task.end ? scores[i / 2][i % 2] * SCALE : NEGATIVE_INFINITY;
    largest = fmaxf(largest, share[i]);
  }
  largest = fmaxf(largest, __shfl_xor_sync(~0u, largest, 1));
  largest = fmaxf(largest, __shfl_xor_sync(~0u, largest, 2));
  float decay = power_of_two(run.largest - safe(largest));
  run.largest = largest;
#pragma unroll
  for (int i = 0; i < 4; ++i) share[i] = power_of_two(share[i] - safe(largest));
  run.total = run.total * decay + ((share[0] + share[1]) + (share[2] + share[3]));
  u32 first = to_bf16_pair(share[0], share[1]), second = to_bf16_pair(share[2], share[3]);
  float even = __shfl_sync(~0u, decay, lane % 4 * 8), odd = __shfl_sync(~0u, decay, lane % 4 * 8 + 4);
  int value_row = lane / 16 * 8 + lane % 8 / 2 + lane % 2 * 4;
#pragma unroll
  for (int i = 0; i < DIM / 16; ++i) {
    uint4 v = load_transposed(token_piece(stage + VALUE_OFFSET, local, value_row, i * 2 + lane / 8 % 2));
    run.sums[i][0] *= even, run.sums[i][1] *= odd, run.sums[i][2] *= even, run.sums[i][3] *= odd;
    multiply(run.sums[i], v.x, v.y, v.z, v.w, first, second);
  }
}

// The warp leaves its sums, largest scores and totals in shared memory.
__device__ __forceinline__ void leave_running(Running& run, AttentionScratch& scratch) {
  int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4;
  run.total += __shfl_xor_sync(~0u, run.total, 1);
  run.total += __shfl_xor_sync(~0u, run.total, 2);
  float* sums = scratch.sums[warp];
#pragma unroll
  for (int i = 0; i < DIM / 16; ++i) {
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      int head = lane % 4 * 2 + j % 2;
      if (head < GROUP) sums[head * DIM + i * 16 + g + j / 2 * 8] = run.sums[i][j];
    }
  }
  if (g < GROUP && lane % 4 == 0) scratch.largest[warp][g] = run.largest, scratch.total[warp][g] = run.total;
}

// This program's values of a task's result: the splits of its row and head in their order; splits not in `filled` hold
// nothing.
__device__ __forceinline__ void merge_splits(const Step& step, const Task& task, u32 filled) {
  int pair = task.row * KV_HEADS + task.head, rank = cluster_rank();
  const float* partial = step.partial + (u64)pair * SPLITS * GROUP * DIM + rank * PART_VALUES;
  const float* stats = step.stats + ((u64)pair * SPLITS * CLUSTER + rank) * 2 * GROUP;
  for (int e = threadIdx.x; e < PART_VALUES; e += CONSUMERS) {
    int g = (rank * PART_VALUES + e) / DIM;
    float values[SPLITS], largest = NEGATIVE_INFINITY, sum = 0, weights = 0;
    float tops[SPLITS], totals[SPLITS];
#pragma unroll
    for (int s = 0; s < SPLITS; ++s) {
      bool here = filled >> s & 1;
      values[s] = here ? load_fresh(partial + s * GROUP * DIM + e) : 0.0f;
      tops[s] = here ? load_fresh(stats + s * (CLUSTER * 2 * GROUP) + 2 * g) : NEGATIVE_INFINITY;
      totals[s] = here ? load_fresh(stats + s * (CLUSTER * 2 * GROUP) + 2 * g + 1) : 0.0f;
    }
#pragma unroll
    for (int s = 0; s < SPLITS; ++s) largest = fmaxf(largest, tops[s]);
#pragma unroll
    for (int s = 0; s < SPLITS; ++s) {
      float weight = power_of_two(tops[s] - largest);
      sum += values[s] * weight;
      weights += totals[s] * weight;
    }
    step.attended[task.row * Q_ROWS + (task.head * GROUP * DIM + rank * PART_VALUES) + e] = to_bf16(sum / weights);
  }
}

// Bit s: split s of this row's heads holds tokens.
__device__ __forceinline__ u32 filled_splits(const Shared& shared, const Layer& layer, int row) {
  const int* borders = shared.borders[layer.window][row];
  u32 filled = 0;
#pragma unroll
  for (int s = 0; s < SPLITS; ++s) filled |= (u32)(borders[s] < borders[s + 1]) << s;
  return filled;
}

// The warps' sums in order: what this program found, to the programs of the cluster that merge it.
__device__ __forceinline__ void send_task(Shared& shared, u32 slot) {
  const AttentionScratch& scratch = shared.attention;
  int rank = cluster_rank();
  u32 message = shared_address(&shared.messages[slot][rank]), bar = shared_address(&shared.task_bars[slot]);
  for (int e = threadIdx.x * 2; e < GROUP * DIM; e += CONSUMERS * 2) {
    int g = e / DIM, to = e / PART_VALUES;
    float largest = NEGATIVE_INFINITY;
    float2 sum = {0, 0};
#pragma unroll
    for (int w = 0; w < CONSUMER_WARPS; ++w) largest = fmaxf(largest, scratch.largest[w][g]);
    largest = safe(largest);
#pragma unroll
    for (int w = 0; w < CONSUMER_WARPS; ++w) {
      float weight = power_of_two(scratch.largest[w][g] - largest);
      float2 part = *(const float2*)&scratch.sums[w][e];
      sum.x += part.x * weight, sum.y += part.y * weight;
    }
    send_pair(shared_address_of(message + e % PART_VALUES * 4, to), sum.x, sum.y, shared_address_of(bar, to));
  }
  for (int i = threadIdx.x; i < GROUP * CLUSTER; i += CONSUMERS) {
    int g = i % GROUP, to = i / GROUP;
    float largest = NEGATIVE_INFINITY, weights = 0;
#pragma unroll
    for (int w = 0; w < CONSUMER_WARPS; ++w) largest = fmaxf(largest, scratch.largest[w][g]);
#pragma unroll
    for (int w = 0; w < CONSUMER_WARPS; ++w)
      weights += scratch.total[w][g] * power_of_two(scratch.largest[w][g] - safe(largest));
    send_pair(
        shared_address_of(message + PART_VALUES * 4 + g * 8, to), largest, weights, shared_address_of(bar, to));
  }
}

// The programs' sums in order: a split's result, for the merge or, when there is no other, for the projection.
__device__ __forceinline__ void finish_task(
    const Step& step, Shared& shared, Turns& turns, const Task& task, bool only) {
  int rank = cluster_rank();
  u32 slot = turns.tasks & 1, bar = shared_address(&shared.task_bars[slot]);
  u64 split = (u64)(task.row * KV_HEADS + task.head) * SPLITS + task.split;
  cluster_barrier_wait(bar, turns.tasks >> 1 & 1);
  if (threadIdx.x == 0) barrier_expect(bar, TASK_BYTES);
  for (int e = threadIdx.x; e < PART_VALUES; e += CONSUMERS) {
    int value = rank * PART_VALUES + e, g = value / DIM;
    float largest = NEGATIVE_INFINITY, sum = 0, weights = 0;
#pragma unroll
    for (int r = 0; r < CLUSTER; ++r) largest = fmaxf(largest, shared.messages[slot][r].stats[g][0]);
#pragma unroll
    for (int r = 0; r < CLUSTER; ++r) {
      const AttentionMessage& message = shared.messages[slot][r];
      float weight = power_of_two(message.stats[g][0] - largest);
      sum += message.values[e] * weight;
      weights += message.stats[g][1] * weight;
    }
    if (only) {
      step.attended[task.row * Q_ROWS + task.head * GROUP * DIM + value] = to_bf16(sum / weights);
    } else {
      step.partial[split * GROUP * DIM + value] = sum;
      float* stats = step.stats + (split * CLUSTER + rank) * 2 * GROUP + 2 * g;
      if (value % DIM == 0 || e == 0) stats[0] = largest, stats[1] = weights;
    }
  }
  ++turns.tasks;
}

// This program's part of a task. Stages go to the warps in turn, STAGE_WARPS at a time.
__device__ __forceinline__ void attend_task(Ring& ring, Shared& shared, int slot, const Task& task) {
  AttentionScratch& scratch = shared.attention;
  int warp = threadIdx.x / 32, lane = threadIdx.x % 32, position = shared.positions[task.row];
  Running run = {};
  run.largest = NEGATIVE_INFINITY;
#pragma unroll
  for (int i = 0; i < DIM / 32; ++i)
    if (lane / 4 < GROUP) run.q[i] = *(const uint4*)&scratch.q[slot][lane / 4 * DIM + i * 32 + lane % 4 * 8];
  int team = 0;
#pragma unroll 1
  for (int done = 0; done < task.num_pages; done += STAGE_PAGES) {
    barrier_wait(ring.full_bar(), ring.parity);
    int first_token = (task.first_page + done) * PAGE, from_warp = warp - team * STAGE_WARPS;
    if (++team == CONSUMER_WARPS / STAGE_WARPS) team = 0;
#pragma unroll 1
    for (int local = from_warp * WARP_TOKENS; 0 <= local && local < STAGE_TOKENS; local += STAGE_WARPS * WARP_TOKENS) {
      int from = first_token + local;
      int to = from + WARP_TOKENS;
      if (to <= task.begin || from >= task.end) continue;
      bool amend = from < task.begin || to > task.end || (from <= position && position < to);
      if (amend) amend_tokens(scratch, slot, ring.stage(), first_token, local, task, position);
      attend_tokens(run, ring.stage(), first_token, local, task);
    }
    __syncwarp();
    if (lane == 0) barrier_arrive(ring.empty_bar());
    ring.advance();
  }
  leave_running(run, scratch);
}

// Tell that this program's values are written; bit i of `to_merge`: it was the last of task i's row and head.
__device__ __forceinline__ void announce(const Step& step, const Layer& layer, Shared& shared, int first, int num_tasks) {
  consumers_meet();
  if (threadIdx.x < 32) {
    int index = first + (int)threadIdx.x * (int)step.clusters;
    Task task;
    bool mine = threadIdx.x < TASKS && index < num_tasks && read_task(index, step, shared, layer, task), last = false;
    u32 num = mine ? __popc(filled_splits(shared, layer, task.row)) : 0, before;
    if (num > 1) {
      u32* arrivals = step.arrivals + (task.row * KV_HEADS + task.head) * CLUSTER + cluster_rank();
      asm volatile("fence.acq_rel.gpu;\natom.relaxed.gpu.global.add.u32 %0, [%1], 1;"
                   : "=r"(before)
                   : "l"(arrivals)
                   : "memory");
      last = before + 1 == num;
      if (last) {
        asm volatile("fence.acq_rel.gpu;" ::: "memory");
        *arrivals = 0;
      }
    }
    u32 to_merge = __ballot_sync(~0u, last);
    if (threadIdx.x == 0) shared.to_merge = to_merge;
  }
  consumers_meet();
}

// Whether any row has more splits than one.
__device__ __forceinline__ bool has_splits(const Step& step, const Shared& shared, const Layer& layer) {
  bool any = false;
  for (int row = 0; row < (int)step.batch; ++row)
    any |= SPLITS > 1 && shared.borders[layer.window][row][1] < shared.borders[layer.window][row][SPLITS];
  return any;
}

__device__ void attend(Ring& ring, Turns& turns, const Step& step, const Layer& layer, Shared& shared) {
  int num_tasks = (int)step.batch * KV_HEADS * SPLITS, clusters = (int)step.clusters;
  bool is_split = has_splits(step, shared, layer);
  if (threadIdx.x == 0) shared.parts_begun = shared.parts_begun + 1;
  for (int first = blockIdx.x / CLUSTER; first < num_tasks; first += TASKS * clusters) {
    Task task;
    int warp = threadIdx.x / 32, own = first + warp * clusters;
    if (warp < TASKS && own < num_tasks && read_task(own, step, shared, layer, task))
      prepare_task(step, layer, shared, warp, task);
    consumers_meet();
    for (int slot = 0; slot < TASKS && first + slot * clusters < num_tasks; ++slot) {
      if (!read_task(first + slot * clusters, step, shared, layer, task)) continue;
      attend_task(ring, shared, slot, task);
      consumers_meet();
      send_task(shared, turns.tasks & 1);
      finish_task(step, shared, turns, task, __popc(filled_splits(shared, layer, task.row)) == 1);
      consumers_meet();
    }
    if (!is_split) continue;
    announce(step, layer, shared, first, num_tasks);
    for (u32 left = shared.to_merge; left; left &= left - 1) {
      read_task(first + (__ffs(left) - 1) * clusters, step, shared, layer, task);
      merge_splits(step, task, filled_splits(shared, layer, task.row));
    }
    consumers_meet();
  }
}
