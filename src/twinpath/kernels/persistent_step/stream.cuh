// The warp that streams: weights and context of the whole step, in the order in which they are used. One lane works.

// Wait for a free stage and say how many bytes will come. At most IN_FLIGHT stages are on their way, and only AHEAD of
// them while the consumers have not begun the part that they belong to: these consumers wait for activations and for the
// grid, whose messages stand in the same queues (a round trip takes 1.3 us behind 48 KiB a multiprocessor).
__device__ __forceinline__ void open_stage(Ring& ring, const Shared& shared, u32 bytes) {
  barrier_wait(ring.empty_bar(), ring.parity ^ 1);
  int before = ring.issued - (shared.parts_begun >= ring.part ? IN_FLIGHT : AHEAD);
  if (before >= 0) barrier_wait(ring.full + before % STAGES * 8, before / STAGES & 1);
  ++ring.issued;
  barrier_expect(ring.full_bar(), bytes);
}

template <Kind kind>
__device__ __forceinline__ void stream_box(Ring& ring, const Shared& shared, const TensorMap& map, int tile, int step, u64 policy) {
  open_stage(ring, shared, STAGE_BYTES);
  // Rows of one tile: eight gates and their eight ups, or sixteen neighbours.
  if constexpr (kind == GATE_UP)
    copy_box(ring.stage(), &map, 0, tile * 8, 0, step * (TILE_K / 64), ring.full_bar(), policy);
  else
    copy_box(ring.stage(), &map, 0, tile * ROWS, step * (TILE_K / 64), ring.full_bar(), policy);
  ring.advance();
}

// This program's slice of its cluster's tiles, in the order of `sum_tiles`.
template <Kind kind>
__device__ void stream_weights(
    Ring& ring, Dealer& dealer, const Step& params, const Shared& shared, const TensorMap& map, u64 policy) {
  using P = Projection<kind>;
  int clusters = (int)params.clusters;
  ++ring.part;
#pragma unroll 1
  for (int first = dealer.deal(P::TILES, clusters); first < P::TILES; first += clusters * P::TOGETHER) {
    if constexpr (P::HELD) {
#pragma unroll 1
      for (int j = 0; j < CLUSTER && first + j * clusters < P::TILES; ++j) {
        int2 steps = P::steps(j);
#pragma unroll 1
        for (int step = steps.x; step < steps.y; ++step)
          stream_box<kind>(ring, shared, map, first + j * clusters, step, policy);
      }
    } else {
      int past = min(P::TILES, first + clusters * P::TOGETHER), end = P::begin() + P::count();
#pragma unroll 1
      for (int step = P::begin(); step < end; ++step)
#pragma unroll 1
        for (int tile = first; tile < past; tile += clusters) stream_box<kind>(ring, shared, map, tile, step, policy);
    }
  }
}

// One split of one row's key head: this program's part of it.
struct Task {
  int row, head, split, begin, end, first_page, num_pages;
};

// False: this split of this row's head is empty, for all programs of the cluster. First splits of all heads come first,
// so that empty ones, which are the last, burden nobody.
__device__ __forceinline__ bool read_task(
    int index, const Step& step, const Shared& shared, const Layer& layer, Task& task) {
  int num_pairs = (int)step.batch * KV_HEADS, pair = index % num_pairs;
  task.split = index / num_pairs;
  task.head = pair % KV_HEADS;
  task.row = pair / KV_HEADS;
  const int* borders = shared.borders[layer.window][task.row];
  int begin = borders[task.split], end = borders[task.split + 1];
  int part = (end - begin + CLUSTER * PAGE - 1) / (CLUSTER * PAGE) * PAGE;
  task.begin = min(begin + cluster_rank() * part, end);
  task.end = min(task.begin + part, end);
  task.first_page = task.begin / PAGE;
  task.num_pages = task.begin < task.end ? (task.end + PAGE - 1) / PAGE - task.first_page : 0;
  return begin < end;
}

// Page numbers that stand in one line of the table.
constexpr int LINE_PAGES = LINE / 4;

__device__ void stream_context(
    Ring& ring, const Step& step, const Shared& shared, const Layer& layer, const LayerMaps& maps, u64 policy) {
  int num_tasks = (int)step.batch * KV_HEADS * SPLITS;
  ++ring.part;
  for (int index = blockIdx.x / CLUSTER; index < num_tasks; index += (int)step.clusters) {
    Task task;
    if (!read_task(index, step, shared, layer, task) || task.num_pages == 0) continue;
    const int* table = step.block_tables + task.row * step.max_pages + task.first_page;
    // Page numbers are read one stage ahead, and their lines long before: from memory one costs as much as three stages.
    int pages[STAGE_PAGES];
#pragma unroll
    for (int i = 0; i < STAGE_PAGES; ++i) pages[i] = table[min(i, task.num_pages - 1)];
#pragma unroll 1
    for (int done = 0; done < task.num_pages; done += STAGE_PAGES) {
      if (done % LINE_PAGES < STAGE_PAGES && done + 2 * LINE_PAGES < task.num_pages) prefetch(table + done + 2 * LINE_PAGES);
      int next[STAGE_PAGES];
#pragma unroll
      for (int i = 0; i < STAGE_PAGES; ++i) next[i] = table[min(done + STAGE_PAGES + i, task.num_pages - 1)];
      open_stage(ring, shared, min(STAGE_PAGES, task.num_pages - done) * PAIR_BYTES);
#pragma unroll
      for (int i = 0; i < STAGE_PAGES; ++i) {
        int row = (pages[i] * KV_HEADS + task.head) * PAGE;
        if (done + i < task.num_pages)
          copy_box(ring.stage() + i * PAIR_BYTES, &maps.pages, 0, row, 0, 0, ring.full_bar(), policy);
        pages[i] = next[i];
      }
      ring.advance();
    }
  }
}

// Ask for the page numbers that `stream_context` will begin with.
__device__ __noinline__ void prefetch_tables(const Step& step, const Shared& shared, const Layer& layer) {
  int num_tasks = (int)step.batch * KV_HEADS * SPLITS;
  for (int index = blockIdx.x / CLUSTER; index < num_tasks; index += (int)step.clusters) {
    Task task;
    if (!read_task(index, step, shared, layer, task) || task.num_pages == 0) continue;
    const int* table = step.block_tables + task.row * step.max_pages + task.first_page;
    prefetch(table);
    if (task.num_pages > LINE_PAGES) prefetch(table + LINE_PAGES);
  }
}

__device__ void stream_step(Ring ring, const Step& step, const Shared& shared) {
  u64 policy = read_once_policy();
  Dealer dealer;
  for (int i = 0; i < LAYERS; ++i) {
    const LayerMaps& maps = step.maps[i];
    prefetch_tables(step, shared, shared.layers[i]);
    stream_weights<QKV>(ring, dealer, step, shared, maps.qkv, policy);
    stream_context(ring, step, shared, shared.layers[i], maps, policy);
    stream_weights<O>(ring, dealer, step, shared, maps.o, policy);
    stream_weights<GATE_UP>(ring, dealer, step, shared, maps.gate_up, policy);
    stream_weights<DOWN>(ring, dealer, step, shared, maps.down, policy);
  }
  stream_weights<HEAD>(ring, dealer, step, shared, *step.head, policy);
}
