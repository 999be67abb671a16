// Attention of a step's rows over paged keys and values: a few rows after long contexts, beside rows that decode.
//
// A tile is 128 lanes: rows times the query heads that share a key head. Its context is cut at fixed places into parts; an
// item is one part of one tile for one key head. Programs take items as they come, the long ones first, the tiles of one
// part together, so that they find its keys in L2. One warp streams pages through a ring in shared memory, two warpgroups
// take 64 lanes each. Parts leave their sums in memory, and who is last for a tile adds them up in their order: a row's
// result depends neither on the other rows nor on how its prompt was cut. A kernel of its own lists the items, once a step.
//
// Compiled for one model: HEADS KV_HEADS DIM (128) SCALE (attention scale times log2 e) MAX_TILES WARPS (8) are macros.
// Pages have 16 tokens.

constexpr int GROUP = HEADS / KV_HEADS;
constexpr int LANES = 128;
constexpr int ROWS = LANES / GROUP;
constexpr int PAGE = 16;
// Tokens that are attended at a time.
constexpr int BLOCK = 128;
constexpr int BLOCK_PAGES = BLOCK / PAGE;
// A page in shared memory: keys, then values, each [DIM / 64][PAGE][64 values of 16 bits].
constexpr int LINE = 128;
constexpr int HALF_BYTES = PAGE * LINE;
constexpr int VALUE_OFFSET = PAGE * DIM * 2;
constexpr int PAIR_BYTES = 2 * VALUE_OFFSET;
constexpr int STAGE_BYTES = BLOCK_PAGES * PAIR_BYTES;
constexpr int STAGES = 3;
// Python knows this number too.
constexpr int MAX_PARTS = 16;

struct TensorMap {
  u64 opaque[16];
};

struct Tile {
  int first_row, num_rows, start, slot;
  __device__ __forceinline__ int end() const { return start + num_rows; }
};

// As listed: for each key head.
struct alignas(16) Item {
  Tile tile;
  // Of the tile.
  int number;
  // How many parts the tile has: none, there is no item left.
  short part, num_parts;
  // Tokens, and where the tile's parts are kept.
  int begin, kept;
  __device__ __forceinline__ bool is_single() const { return kept < 0; }
};
static_assert(sizeof(Item) == 32, "read as two times 16 bytes");

struct Plan {
  // [num_tiles][4]: first row, rows, position of the first, slot; rows are 0 in padding.
  const int* tiles;
  Item* items;
  // How many items; then what each layer's programs have taken.
  int* counts;
  u64 num_tiles, num_layers, num_part_slots, splits;
};

struct Attention {
  const u16* q;
  u16* out;
  const int* tables;
  const TensorMap* pages;
  // Of parts: float32 [part slot][KV_HEADS][LANES][DIM] and [..][LANES][2], largest score and sum of weights. Rows that
  // decode have their own, [tile][MAX_PARTS][KV_HEADS][GROUP][..].
  float *sums, *stats, *single_sums, *single_stats;
  // [tile][KV_HEADS][2], zero between launches.
  u32* arrivals;
  const Item* items;
  const int* num_items;
  // Of this layer, zero before the launch.
  u32* num_taken;
  u64 max_pages, is_dependent;
};

struct Shared {
  u64 full[STAGES], empty[STAGES], item_full[2], item_empty[2];
  int is_last[2];
  Item items[2];
  int heads[2];
};

struct Ring {
  u32 stages, full, empty;
  int index = 0;
  u32 parity = 0;
  __device__ __forceinline__ u32 stage() const { return stages + index * STAGE_BYTES; }
  __device__ __forceinline__ u32 full_bar() const { return full + index * 8; }
  __device__ __forceinline__ u32 empty_bar() const { return empty + index * 8; }
  __device__ __forceinline__ void advance() {
    if (++index == STAGES) {
      index = 0;
      parity ^= 1;
    }
  }
};

// Where part `part` of a context begins, the same for every context: parts of 2,048 tokens, from 8,192 on of 4,096, from
// 32,768 on of 16,384; of rows that decode, half of all that.
__device__ __forceinline__ int part_begin(int part, bool is_single) {
  int begin = part < 4 ? 2048 * part : part < 10 ? 4096 * (part - 2) : 16384 * (part - 8);
  return is_single ? begin / 2 : begin;
}
// The last of `num` parts goes to the end of the context.
__device__ __forceinline__ int part_end(const Item& item) {
  return item.part + 1 < item.num_parts ? part_begin(item.part + 1, item.is_single()) : item.tile.end();
}

__device__ __forceinline__ u32 pack_pair(float low, float high) {
  u32 pair;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
  return pair;
}
__device__ __forceinline__ float safe(float largest) { return largest == NEGATIVE_INFINITY ? 0.0f : largest; }
__device__ __forceinline__ float2 load_fresh(const float2* p) {
  float2 v;
  asm volatile("ld.global.cg.v2.f32 {%0, %1}, [%2];" : "=f"(v.x), "=f"(v.y) : "l"(p) : "memory");
  return v;
}
