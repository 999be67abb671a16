// Attention of the new token of each row over its pages, split by split.

__device__ __forceinline__ void load_eight(float (&x)[8], const float* at) {
#pragma unroll
  for (int i = 0; i < 8; i += 4) {
    float4 four = load_fresh((const float4*)(at + i));
    x[i] = four.x, x[i + 1] = four.y, x[i + 2] = four.z, x[i + 3] = four.w;
  }
}

// Norm and rotation of this lane's eight values of one head.
__device__ __forceinline__ void norm_and_rotate(float (&x)[8], const float* gain, const float* rope, int position) {
  int lane = threadIdx.x % HEAD_LANES;
#if HEAD_NORMS
  float square = 0;
#pragma unroll
  for (int i = 0; i < 8; ++i) square += x[i] * x[i];
#pragma unroll
  for (int offset = HEAD_LANES / 2; offset > 0; offset /= 2) square += __shfl_xor_sync(~0u, square, offset);
  float scale = rsqrtf(square / DIM + EPS);
#pragma unroll
  for (int i = 0; i < 8; ++i) x[i] *= scale * gain[lane * 8 + i];
#endif
  const float* angles = rope + (u64)position * DIM + lane % (HEAD_LANES / 2) * 8;
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    float other = __shfl_xor_sync(~0u, x[i], HEAD_LANES / 2);
    x[i] = x[i] * angles[i] + (lane < HEAD_LANES / 2 ? -other : other) * angles[DIM / 2 + i];
  }
}

__device__ __forceinline__ uint4 pack(const float (&x)[8]) {
  return make_uint4(
      to_bf16_pair(x[0], x[1]), to_bf16_pair(x[2], x[3]), to_bf16_pair(x[4], x[5]), to_bf16_pair(x[6], x[7]));
}

// One warp: the queries of one task, and where it holds the new token also its key and value, which it appends.
__device__ void prepare_task(const Step& step, const Layer& layer, Shared& shared, int slot, const Task& task) {
  AttentionScratch& scratch = shared.attention;
  int lane = threadIdx.x % 32, part = lane % HEAD_LANES, position = shared.positions[task.row];
  const float* projected = step.projected + task.row * QKV_ROWS + part * 8;
#pragma unroll
  for (int first = 0; first < GROUP; first += 32 / HEAD_LANES) {
    int g = first + lane / HEAD_LANES;
    float q[8];
    load_eight(q, projected + (task.head * GROUP + min(g, GROUP - 1)) * DIM);
    norm_and_rotate(q, layer.q_gain, layer.rope, position);
    if (g < GROUP) *(uint4*)&scratch.q[slot][g * DIM + part * 8] = pack(q);
  }
  if (position < task.begin || position >= task.end) return;
  float k[8], v[8];
  load_eight(k, projected + (HEADS + task.head) * DIM);
  load_eight(v, projected + (HEADS + KV_HEADS + task.head) * DIM);
  norm_and_rotate(k, layer.k_gain, layer.rope, position);
  u64 page = step.block_tables[task.row * step.max_pages + position / PAGE];
  u64 at = ((page * KV_HEADS + task.head) * PAGE + position % PAGE) * DIM + part * 8;
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

// Address of 16-byte piece `piece` of a token's key or value; `at` is where the stage's keys or values begin.
__device__ __forceinline__ u32 token_piece(u32 at, int token, int piece) {
  int row = token % PAGE;
  return at + token / PAGE * PAGE_BYTES + piece / 8 * (PAGE * LINE) + row * LINE + (piece % 8 ^ row % 8) * 16;
}

// Put the new token into the stage, and zeros for the values of tokens outside: an older request may have left
// something there that is not a number, and 0 times that is not 0. Only this warp reads these tokens.
__device__ __forceinline__ void amend_tokens(
    const AttentionScratch& scratch, int slot, u32 stage, int first_token, int local, const Task& task, int position) {
  int lane = threadIdx.x % 32, part = lane % HEAD_LANES;
  for (int i = lane / HEAD_LANES; i < 8; i += 32 / HEAD_LANES) {
    int token = first_token + local + i;
    bool inside = task.begin <= token && token < task.end, fresh = inside && token == position;
    uint4 value = fresh ? *(const uint4*)&scratch.v[slot][part * 8] : make_uint4(0, 0, 0, 0);
    if (fresh) store_shared(token_piece(stage, local + i, part), *(const uint4*)&scratch.k[slot][part * 8]);
    if (fresh || !inside) store_shared(token_piece(stage + VALUE_OFFSET, local + i, part), value);
  }
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
  __syncwarp();
}

// Eight tokens of a stage, from `local` on, in the order of `own_line`.
__device__ __forceinline__ void attend_tokens(Running& run, u32 stage, int first_token, int local, const Task& task) {
  int lane = threadIdx.x % 32;
  float scores[4] = {0, 0, 0, 0};
#pragma unroll
  for (int i = 0; i < DIM / 32; ++i) {
    uint4 k = load_shared(token_piece(stage, local + own_line(), i * 4 + lane % 4));
    multiply(scores, run.q[i].x, 0, run.q[i].y, 0, k.x, k.y);
    multiply(scores, run.q[i].z, 0, run.q[i].w, 0, k.z, k.w);
  }
  // Columns 2 (l % 4) and the next are tokens l % 4 and l % 4 + 4.
  int token = first_token + local + lane % 4;
  float first = token >= task.begin && token < task.end ? scores[0] * SCALE : NEGATIVE_INFINITY;
  float second = token + 4 >= task.begin && token + 4 < task.end ? scores[1] * SCALE : NEGATIVE_INFINITY;
  float largest = fmaxf(run.largest, fmaxf(first, second));
  largest = fmaxf(largest, __shfl_xor_sync(~0u, largest, 1));
  largest = fmaxf(largest, __shfl_xor_sync(~0u, largest, 2));
  float decay = power_of_two(run.largest - safe(largest));
  run.largest = largest;
  first = power_of_two(first - safe(largest));
  second = power_of_two(second - safe(largest));
  run.total = run.total * decay + (first + second);
  u32 weights = to_bf16_pair(first, second);
  float even = __shfl_sync(~0u, decay, lane % 4 * 8), odd = __shfl_sync(~0u, decay, lane % 4 * 8 + 4);
  int value_row = lane % 8 / 2 + lane % 2 * 4;
#pragma unroll
  for (int i = 0; i < DIM / 16; i += 2) {
    uint4 v = load_transposed(token_piece(stage + VALUE_OFFSET, local + value_row, i * 2 + lane / 8));
#pragma unroll
    for (int j = i; j < i + 2; ++j) {
      run.sums[j][0] *= even, run.sums[j][1] *= odd, run.sums[j][2] *= even, run.sums[j][3] *= odd;
      multiply(run.sums[j], j == i ? v.x : v.z, j == i ? v.y : v.w, weights);
    }
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

// The splits of one (row, head) in their order; splits not in `filled` hold nothing.
__device__ __forceinline__ void merge_splits(const Step& step, const Task& task, u32 filled) {
  int pair = task.row * KV_HEADS + task.head;
  const float* partial = step.partial + (u64)pair * SPLITS * GROUP * DIM;
  const float* stats = step.stats + (u64)pair * SPLITS * 2 * GROUP;
  for (int e = threadIdx.x; e < GROUP * DIM; e += CONSUMERS) {
    int g = e / DIM;
    float values[SPLITS], largest = NEGATIVE_INFINITY, sum = 0, weights = 0;
    float tops[SPLITS], totals[SPLITS];
#pragma unroll
    for (int s = 0; s < SPLITS; ++s) {
      bool here = filled >> s & 1;
      values[s] = here ? load_fresh(partial + s * GROUP * DIM + e) : 0.0f;
      tops[s] = here ? load_fresh(stats + s * 2 * GROUP + g) : NEGATIVE_INFINITY;
      totals[s] = here ? load_fresh(stats + (s * 2 + 1) * GROUP + g) : 0.0f;
    }
#pragma unroll
    for (int s = 0; s < SPLITS; ++s) largest = fmaxf(largest, tops[s]);
#pragma unroll
    for (int s = 0; s < SPLITS; ++s) {
      float weight = power_of_two(tops[s] - largest);
      sum += values[s] * weight;
      weights += totals[s] * weight;
    }
    step.attended[task.row * Q_ROWS + task.head * GROUP * DIM + e] = to_bf16(sum / weights);
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

// The warps' sums in order: a split's result, for the merge or, when there is no other, for the projection.
__device__ __forceinline__ void finish_task(
    const Step& step, const AttentionScratch& scratch, const Task& task, bool only) {
  u64 pair = task.row * KV_HEADS + task.head;
  u64 at = (pair * SPLITS + task.split) * GROUP * DIM, stat = (pair * SPLITS + task.split) * 2 * GROUP;
  for (int e = threadIdx.x; e < GROUP * DIM; e += CONSUMERS) {
    int g = e / DIM;
    float largest = NEGATIVE_INFINITY, sum = 0, weights = 0;
#pragma unroll
    for (int w = 0; w < ATTENTION_WARPS; ++w) largest = fmaxf(largest, scratch.largest[w][g]);
#pragma unroll
    for (int w = 0; w < ATTENTION_WARPS; ++w) {
      float weight = power_of_two(scratch.largest[w][g] - largest);
      sum += scratch.sums[w][e] * weight;
      weights += scratch.total[w][g] * weight;
    }
    if (only) {
      step.attended[task.row * Q_ROWS + task.head * GROUP * DIM + e] = to_bf16(sum / weights);
    } else {
      step.partial[at + e] = sum;
      if (e % DIM == 0) step.stats[stat + g] = largest, step.stats[stat + GROUP + g] = weights;
    }
  }
}

__device__ __forceinline__ void attend_task(Ring& ring, Shared& shared, int slot, const Task& task) {
  AttentionScratch& scratch = shared.attention;
  int warp = threadIdx.x / 32, lane = threadIdx.x % 32, position = shared.positions[task.row];
  Running run = {};
  run.largest = NEGATIVE_INFINITY;
#pragma unroll
  for (int i = 0; i < DIM / 32; ++i)
    if (lane / 4 < GROUP) run.q[i] = *(const uint4*)&scratch.q[slot][lane / 4 * DIM + i * 32 + lane % 4 * 8];
  for (int done = 0; done < task.num_pages; done += STAGE_PAGES) {
    barrier_wait(ring.full_bar(), ring.parity);
    int first_token = (task.first_page + done) * PAGE;
    for (int local = warp * 8; local < STAGE_TOKENS; local += CONSUMER_WARPS * 8) {
      int from = first_token + local;
      if (from + 8 <= task.begin || from >= task.end) continue;
      bool amend = from < task.begin || from + 8 > task.end || (from <= position && position < from + 8);
      if (amend) amend_tokens(scratch, slot, ring.stage(), first_token, local, task, position);
      attend_tokens(run, ring.stage(), first_token, local, task);
    }
    __syncwarp();
    if (lane == 0) barrier_arrive(ring.empty_bar());
    ring.advance();
  }
  if (warp < ATTENTION_WARPS) leave_running(run, scratch);
}

// Tell that this program's splits are written; bit i of `to_merge`: it was the last of task i's row and head.
__device__ __forceinline__ void announce(const Step& step, const Layer& layer, Shared& shared, int first, int num_tasks) {
  consumers_meet();
  if (threadIdx.x < 32) {
    int index = first + (int)threadIdx.x * PROGRAMS;
    Task task;
    bool mine = threadIdx.x < TASKS && index < num_tasks && read_task(index, step, shared, layer, task), last = false;
    if (mine) {
      u32 num = __popc(filled_splits(shared, layer, task.row)), pair = task.row * KV_HEADS + task.head, before;
      asm volatile("fence.acq_rel.gpu;\natom.acq_rel.gpu.global.add.u32 %0, [%1], 1;"
                   : "=r"(before)
                   : "l"(step.arrivals + pair)
                   : "memory");
      last = num > 1 && before + 1 == num;
      if (before + 1 == num) step.arrivals[pair] = 0;
    }
    u32 to_merge = __ballot_sync(~0u, last);
    if (threadIdx.x == 0) shared.to_merge = to_merge;
  }
  consumers_meet();
}

__device__ void attend(Ring& ring, const Step& step, const Layer& layer, Shared& shared) {
  int num_tasks = (int)step.batch * KV_HEADS * SPLITS;
  AttentionScratch& scratch = shared.attention;
  if (threadIdx.x == 0) shared.parts_begun = shared.parts_begun + 1;
  for (int first = blockIdx.x; first < num_tasks; first += TASKS * PROGRAMS) {
    Task task;
    int warp = threadIdx.x / 32, own = first + warp * PROGRAMS;
    if (warp < TASKS && own < num_tasks && read_task(own, step, shared, layer, task))
      prepare_task(step, layer, shared, warp, task);
    consumers_meet();
    for (int slot = 0; slot < TASKS && first + slot * PROGRAMS < num_tasks; ++slot) {
      int index = first + slot * PROGRAMS;
      if (!read_task(index, step, shared, layer, task)) continue;
      attend_task(ring, shared, slot, task);
      consumers_meet();
      bool only = __popc(filled_splits(shared, layer, task.row)) == 1;
      finish_task(step, scratch, task, only);
      consumers_meet();
    }
    announce(step, layer, shared, first, num_tasks);
    for (u32 left = shared.to_merge; left; left &= left - 1) {
      read_task(first + (__ffs(left) - 1) * PROGRAMS, step, shared, layer, task);
      merge_splits(step, task, filled_splits(shared, layer, task.row));
    }
    consumers_meet();
  }
}
