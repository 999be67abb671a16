// Ranks, weights, and what a block or a cluster adds up. Sums are of integers: their order cannot change a draw.

DEVICE void cluster_meets() {
  cluster_arrive();
  cluster_wait();
}

// Larger floats give larger integers.
DEVICE int ordered_bits(float x) {
  int bits = __float_as_int(x);
  return bits ^ ((bits >> 31) & 0x7fffffff);
}
DEVICE float logit_of(i64 key) {
  int ordered = (int)(key >> ID_BITS);
  return __int_as_float(ordered ^ ((ordered >> 31) & 0x7fffffff));
}
DEVICE int id_of(i64 key) { return (int)(key & ID_MASK) ^ ID_MASK; }
// One number per id, all distinct: by logit, then by lower id.
DEVICE i64 rank_key(float x, int id) { return ((i64)ordered_bits(x) * (1ll << ID_BITS)) | (i64)(id ^ ID_MASK); }

// Exponent of an id's weight, and the weight: operation by operation as `sampling.reference.fixed_exp`, never fused.
DEVICE double exponent_of(float x, float best, double inverse_temperature) {
  return __dmul_rn(__dsub_rn((double)x, (double)best), inverse_temperature);
}
DEVICE double series_step(double series, double r, double term) { return __dadd_rn(__dmul_rn(series, r), term); }
DEVICE u64 weigh(double exponent) {
  exponent = fmax(exponent, -64.0);
  constexpr double ROUNDER = 6755399441055744.0;
  double powers = __dsub_rn(__dadd_rn(__dmul_rn(exponent, 0x1.71547652b82fep+0), ROUNDER), ROUNDER);
  double r = __dsub_rn(exponent, __dmul_rn(powers, 0x1.62e42fee00000p-1));
  r = __dsub_rn(r, __dmul_rn(powers, 0x1.a39ef35793c76p-33));
  double series = series_step(2.755731922398589e-07, r, 2.7557319223985893e-06);
  series = series_step(series, r, 2.48015873015873e-05);
  series = series_step(series, r, 0.0001984126984126984);
  series = series_step(series, r, 0.001388888888888889);
  series = series_step(series, r, 0.008333333333333333);
  series = series_step(series, r, 0.041666666666666664);
  series = series_step(series, r, 0.16666666666666666);
  series = series_step(series, r, 0.5);
  series = series_step(series, r, 1.0);
  series = series_step(series, r, 1.0);
  double scale = __longlong_as_double((i64)((int)powers + 34 + 1023) << 52);
  return (u64)(i64)__dsub_rn(__dadd_rn(__dmul_rn(series, scale), ROUNDER), ROUNDER);
}
// Bin 0 holds the likeliest; equal logits share a bin, and a higher logit never lies in a later one.
DEVICE int bin_of(double exponent) {
  int bin = (int)__dmul_rn(-exponent, NUM_BINS / BIN_SPAN);
  return bin < NUM_BINS ? bin : NUM_BINS - 1;
}

// ceil(top_p * total), at least 1.
DEVICE u64 needed_weight(u64 total, double top_p) {
  double wanted = __dmul_rn(top_p, (double)total);
  i64 needed = (i64)wanted;
  if ((double)needed < wanted) ++needed;
  return needed > 1 ? needed : 1;
}

// Philox4x32-10, key `seed`, counter `position`: its first two words, low word first.
DEVICE u64 random64(u64 seed, u32 position) {
  u32 c0 = position, c1 = 0, c2 = 0, c3 = 0, k0 = (u32)seed, k1 = (u32)(seed >> 32);
  for (int i = 0; i < 10; ++i) {
    u64 p0 = (u64)0xD2511F53u * c0, p1 = (u64)0xCD9E8D57u * c2;
    c0 = (u32)(p1 >> 32) ^ c1 ^ k0;
    c2 = (u32)(p0 >> 32) ^ c3 ^ k1;
    c1 = (u32)p1;
    c3 = (u32)p0;
    k0 += 0x9E3779B9u;
    k1 += 0xBB67AE85u;
  }
  return ((u64)c1 << 32) | c0;
}

DEVICE i64 warp_max(i64 value) {
  for (int step = 16; step > 0; step /= 2) {
    i64 other = __shfl_xor_sync(0xffffffffu, value, step);
    value = other > value ? other : value;
  }
  return value;
}

// Inclusive sum over the block's threads up to this one; `total` is the whole. All threads call it.
DEVICE u64 block_scan(Shared& shared, u64 value, u64& total) {
  int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  for (int step = 1; step < 32; step *= 2) {
    u64 other = __shfl_up_sync(0xffffffffu, value, step);
    if (lane >= step) value += other;
  }
  __syncthreads();
  if (lane == 31) shared.warp_sums[warp] = value;
  __syncthreads();
  total = 0;
  for (int i = 0; i < WARPS; ++i) {
    if (i < warp) value += shared.warp_sums[i];
    total += shared.warp_sums[i];
  }
  return value;
}

// The largest of the block's values, in every thread.
DEVICE i64 block_max(Shared& shared, i64 value) {
  value = warp_max(value);
  __syncthreads();
  if (threadIdx.x % 32 == 0) shared.warp_sums[threadIdx.x / 32] = (u64)value;
  __syncthreads();
  value = LEAST;
  for (int i = 0; i < WARPS; ++i) value = max(value, (i64)shared.warp_sums[i]);
  return value;
}

// Thread i < CLUSTER puts `value` where every block finds what this one says.
template <typename T>
DEVICE void tell_all(T* own_slot, T value) {
  if (threadIdx.x < CLUSTER) *at_block(own_slot, threadIdx.x) = value;
}

// What all blocks of the cluster say together; `turn` counts these calls.
DEVICE u64 cluster_sum(Shared& shared, u64 value, int& turn) {
  u64 total;
  block_scan(shared, value, total);
  tell_all(&shared.sums[turn & 1][cluster_rank()], total);
  cluster_meets();
  u64 sum = 0;
  for (int rank = 0; rank < CLUSTER; ++rank) sum += shared.sums[turn & 1][rank];
  ++turn;
  return sum;
}
