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
__device__ void stream_weights(Ring& ring, const Shared& shared, const TensorMap& map, u64 policy) {
  using P = Projection<kind>;
  ++ring.part;
  for (int first = blockIdx.x; first < P::TILES; first += PROGRAMS * P::TOGETHER) {
    for (int step = 0; step < P::STEPS; ++step) {
      for (int tile = first; tile < min(P::TILES, first + PROGRAMS * P::TOGETHER); tile += PROGRAMS) {
        open_stage(ring, shared, STAGE_BYTES);
        // Rows of one tile: eight gates and their eight ups, or sixteen neighbours.
        if constexpr (kind == GATE_UP)
          copy_box(ring.stage(), &map, 0, tile * 8, 0, step * (TILE_K / 64), ring.full_bar(), policy);
        else
          copy_box(ring.stage(), &map, 0, tile * ROWS, step * (TILE_K / 64), ring.full_bar(), policy);
        ring.advance();
      }
    }
  }
}

struct Task {
  int row, head, split, begin, end, first_page, num_pages;
};

// False: this split of this row's head is empty. First splits of all heads come first, so that empty ones, which are the
// last, burden nobody.
__device__ __forceinline__ bool read_task(
    int index, const Step& step, const Shared& shared, const Layer& layer, Task& task) {
  int num_pairs = (int)step.batch * KV_HEADS, pair = index % num_pairs;
  task.split = index / num_pairs;
  task.head = pair % KV_HEADS;
  task.row = pair / KV_HEADS;
  task.begin = shared.borders[layer.window][task.row][task.split];
  task.end = shared.borders[layer.window][task.row][task.split + 1];
  task.first_page = task.begin / PAGE;
  task.num_pages = (task.end + PAGE - 1) / PAGE - task.first_page;
  return task.begin < task.end;
}

__device__ void stream_context(
    Ring& ring, const Step& step, const Shared& shared, const Layer& layer, const LayerMaps& maps, u64 policy) {
  int num_tasks = (int)step.batch * KV_HEADS * SPLITS;
  ++ring.part;
  for (int index = blockIdx.x; index < num_tasks; index += PROGRAMS) {
    Task task;
    if (!read_task(index, step, shared, layer, task)) continue;
    const int* table = step.block_tables + task.row * step.max_pages + task.first_page;
    for (int done = 0; done < task.num_pages; done += STAGE_PAGES) {
      int num = min(STAGE_PAGES, task.num_pages - done);
      open_stage(ring, shared, 2 * num * PAGE_BYTES);
      for (int i = 0; i < num; ++i) {
        int row = (table[done + i] * KV_HEADS + task.head) * PAGE;
        u32 to = ring.stage() + i * PAGE_BYTES;
        copy_box(to, &maps.k, 0, row, 0, ring.full_bar(), policy);
        copy_box(to + VALUE_OFFSET, &maps.v, 0, row, 0, ring.full_bar(), policy);
      }
      ring.advance();
    }
  }
}

__device__ void stream_step(Ring ring, const Step& step, const Shared& shared) {
  u64 policy = read_once_policy();
  for (int i = 0; i < LAYERS; ++i) {
    const LayerMaps& maps = step.maps[i];
    stream_weights<QKV>(ring, shared, maps.qkv, policy);
    stream_context(ring, step, shared, shared.layers[i], maps, policy);
    stream_weights<O>(ring, shared, maps.o, policy);
    stream_weights<GATE_UP>(ring, shared, maps.gate_up, policy);
    stream_weights<DOWN>(ring, shared, maps.down, policy);
  }
  stream_weights<HEAD>(ring, shared, *step.head, policy);
}
