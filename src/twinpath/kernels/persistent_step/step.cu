// The order of the step, and the kernel.

__device__ void consume_step(Ring ring, const Step& step, Shared& shared) {
  Turns turns;
  Dealer dealer;
  u32 target = 0, tag = WORLD > 1 ? *(volatile u32*)step.epoch : 0;
  auto meet = [&] { grid_meets(step.meetings, target += gridDim.x); };
#pragma unroll 1
  for (int i = 0; i < LAYERS; ++i) {
    const Layer& layer = shared.layers[i];
    project<QKV>(ring, turns, dealer, step, layer, shared, step.scaled);
    meet();
    attend(ring, turns, step, layer, shared);
    meet();
    project<O>(ring, turns, dealer, step, layer, shared, step.attended, ++tag);
    meet();
    project<GATE_UP>(ring, turns, dealer, step, layer, shared, step.scaled);
    meet();
    project<DOWN>(ring, turns, dealer, step, layer, shared, step.gated, ++tag);
    meet();
  }
  project<HEAD>(ring, turns, dealer, step, shared.layers[0], shared, step.scaled);
  // The last to leave makes the counters ready for the next launch.
  if (threadIdx.x == 0) {
    u32 before = atomicAdd(step.meetings + 1, 1);
    if (before + 1 == gridDim.x) {
      step.meetings[0] = step.meetings[1] = 0;
      if (WORLD > 1) *step.epoch = tag;
    }
  }
}

// What stays the same for the whole step, and is read often.
__device__ __forceinline__ void load_tables(const Step& step, Shared& shared) {
  for (int i = threadIdx.x; i < (int)(sizeof(shared.layers) / 8); i += blockDim.x)
    ((u64*)shared.layers)[i] = ((const u64*)step.layers)[i];
  if (threadIdx.x < COLUMNS) shared.positions[threadIdx.x] = step.positions[threadIdx.x];
  for (int i = threadIdx.x; i < WINDOWS * COLUMNS * (SPLITS + 1); i += blockDim.x) {
    int window = i / (COLUMNS * (SPLITS + 1)), rest = i % (COLUMNS * (SPLITS + 1));
    (&shared.borders[window][0][0])[rest] = step.borders[(window * B_MAX + rest / (SPLITS + 1)) * BORDERS + rest % (SPLITS + 1)];
  }
}

extern "C" __global__ void __cluster_dims__(CLUSTER, 1, 1) __launch_bounds__(CONSUMERS + 32, 1)
decode_step(const __grid_constant__ Step step) {
  extern __shared__ __align__(1024) unsigned char memory[];
  Shared& shared = *(Shared*)(memory + STAGES * STAGE_BYTES);
  Ring ring;
  ring.stages = shared_address(memory);
  ring.full = shared_address(shared.full);
  ring.empty = shared_address(shared.empty);
  if (ring.stages % 1024 != 0) __trap();
  if (threadIdx.x == 0) {
    for (int i = 0; i < STAGES; ++i) {
      barrier_init(ring.full + i * 8, 1);
      barrier_init(ring.empty + i * 8, CONSUMER_WARPS);
    }
    for (int i = 0; i < 2; ++i) {
      barrier_init(shared_address(&shared.tile_bars[i]), 1);
      barrier_init(shared_address(&shared.task_bars[i]), 1);
    }
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    for (int i = 0; i < 2; ++i) {
      barrier_expect(shared_address(&shared.tile_bars[i]), TILE_BYTES);
      barrier_expect(shared_address(&shared.task_bars[i]), TASK_BYTES);
    }
    shared.parts_begun = 0;
  }
  load_tables(step, shared);
  __syncthreads();
  cluster_meets();
  if (threadIdx.x < CONSUMERS)
    consume_step(ring, step, shared);
  else if (threadIdx.x == CONSUMERS)
    stream_step(ring, step, shared);
  __syncwarp();
  // Nobody leaves while another may still send to it.
  cluster_meets();
}
