// The list of a step's items: one block, before the first layer.

struct Listed {
  Tile tile;
  // A row that decodes: the only one of its request.
  bool is_single;
};

__device__ __forceinline__ Listed read_tile(const Plan& plan, int number) {
  if (number >= (int)plan.num_tiles) return {{0, 0, 0, 0}, false};
  const int* at = plan.tiles + number * 4;
  Tile tile = {at[0], max(at[1], 0), at[2], at[3]};
  // The last tile of many rows may have one as well.
  return {tile, tile.num_rows == 1 && (number == 0 || at[-3] != ROWS || at[-1] != tile.slot)};
}

__device__ __forceinline__ int count_parts(const Plan& plan, const Listed& listed, int most) {
  if (listed.tile.num_rows == 0) return 0;
  int num = 1;
  while (plan.splits && num < most && part_begin(num, listed.is_single) < listed.tile.end()) ++num;
  return num;
}

// One thread for each tile. Lists of items: parts MAX_PARTS - 1 to 0 of tiles with many rows, then of single rows.
extern "C" __global__ void __launch_bounds__(MAX_TILES) plan_attention(const __grid_constant__ Plan plan) {
  __shared__ int warp_counts[2 * MAX_PARTS][MAX_TILES / 32], long_counts[MAX_TILES / 32];
  int number = threadIdx.x, lane = number % 32, warp = number / 32;
  u32 below = (1u << lane) - 1;
  Listed listed = read_tile(plan, number);
  bool is_long = listed.tile.num_rows > 0 && !listed.is_single;
  u32 longs = __ballot_sync(~0u, is_long);
  if (lane == 0) long_counts[warp] = __popc(longs);
  for (int i = number; i < (int)plan.num_layers; i += MAX_TILES) plan.counts[1 + i] = 0;
  __syncthreads();
  int num_long = 0, rank = __popc(longs & below);
  for (int i = 0; i < MAX_TILES / 32; ++i) {
    if (i < warp) rank += long_counts[i];
    num_long += long_counts[i];
  }
  int most = MAX_PARTS;
  while (most > 1 && most * num_long > (int)plan.num_part_slots) most /= 2;
  int num_parts = count_parts(plan, listed, listed.is_single ? MAX_PARTS : most);
#pragma unroll 1
  for (int list = 0; list < 2 * MAX_PARTS; ++list) {
    bool here = listed.is_single == (list >= MAX_PARTS) && num_parts > MAX_PARTS - 1 - list % MAX_PARTS;
    u32 all = __ballot_sync(~0u, here);
    if (lane == 0) warp_counts[list][warp] = __popc(all);
  }
  __syncthreads();
  int at = 0;
#pragma unroll 1
  for (int list = 0; list < 2 * MAX_PARTS; ++list) {
    int part = MAX_PARTS - 1 - list % MAX_PARTS;
    bool here = listed.is_single == (list >= MAX_PARTS) && num_parts > part;
    u32 all = __ballot_sync(~0u, here);
    int place = at + __popc(all & below);
    for (int i = 0; i < MAX_TILES / 32; ++i) {
      if (i < warp) place += warp_counts[list][i];
      at += warp_counts[list][i];
    }
    if (!here) continue;
    int kept = listed.is_single ? -1 : rank * most;
    plan.items[place] = {
        listed.tile, number, (short)part, (short)num_parts, part_begin(part, listed.is_single), kept};
  }
  if (number == 0) plan.counts[0] = at;
}
