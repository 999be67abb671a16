// What the persistent step needs of the machine: bulk copies that complete on a barrier, waits, a barrier of the whole
// grid, tensor-core products, loads that no stale line can answer. Included by text: NVRTC sees no files.

typedef unsigned int u32;
typedef unsigned long long u64;
typedef unsigned short u16;

#define NEGATIVE_INFINITY __int_as_float((int)0xff800000)

constexpr int CONSUMER_WARPS = WARPS;
constexpr int CONSUMERS = CONSUMER_WARPS * 32;
// Polls before a wait counts as hung: seconds, while a step takes milliseconds. The fault ends the engine's process. Where
// ranks share the model, everybody may wait for one that is still starting, so nobody gives up: the engine's process
// hears of a rank that is lost.
constexpr bool GIVES_UP = WORLD == 1;
constexpr u32 MAX_POLLS = 1u << 22;

__device__ __forceinline__ void prefetch(const void* p) { asm volatile("prefetch.global.L1 [%0];" ::"l"(p)); }

__device__ __forceinline__ u32 shared_address(const void* p) { return (u32)__cvta_generic_to_shared(p); }

__device__ __forceinline__ void barrier_init(u32 bar, u32 count) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(bar), "r"(count) : "memory");
}
__device__ __forceinline__ void barrier_expect(u32 bar, u32 bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(bar), "r"(bytes) : "memory");
}
__device__ __forceinline__ void barrier_arrive(u32 bar) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(bar) : "memory");
}
__device__ __forceinline__ void barrier_wait(u32 bar, u32 parity) {
#pragma unroll 1
  for (u32 polls = 0; !GIVES_UP || polls < MAX_POLLS; ++polls) {
    u32 done;
    asm volatile(
        "{\n.reg .pred p;\nmbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\nselp.u32 %0, 1, 0, p;\n}"
        : "=r"(done)
        : "r"(bar), "r"(parity)
        : "memory");
    if (done) return;
  }
  __trap();
}

// The same for a barrier that other programs of the cluster complete.
__device__ __forceinline__ void cluster_barrier_wait(u32 bar, u32 parity) {
#pragma unroll 1
  for (u32 polls = 0; !GIVES_UP || polls < MAX_POLLS; ++polls) {
    u32 done;
    asm volatile(
        "{\n.reg .pred p;\nmbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 p, [%1], %2;\nselp.u32 %0, 1, 0, p;\n}"
        : "=r"(done)
        : "r"(bar), "r"(parity)
        : "memory");
    if (done) return;
  }
  __trap();
}

__device__ __forceinline__ int cluster_rank() {
  u32 rank;
  asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  return (int)rank;
}
// Where `address` of this program's shared memory lies in that of another program of the cluster.
__device__ __forceinline__ u32 shared_address_of(u32 address, int rank) {
  u32 there;
  asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(address), "r"(rank));
  return there;
}
// Two values to another program; its barrier counts the 8 bytes when they have come.
__device__ __forceinline__ void send_pair(u32 to, float first, float second, u32 bar) {
  asm volatile("st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v2.f32 [%0], {%1, %2}, [%3];" ::"r"(to),
               "f"(first), "f"(second), "r"(bar)
               : "memory");
}
__device__ __forceinline__ void cluster_meets() {
  asm volatile("barrier.cluster.arrive.release.aligned;\nbarrier.cluster.wait.acquire.aligned;" ::: "memory");
}

__device__ __forceinline__ u64 read_once_policy() {
  u64 policy;
  asm volatile("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
  return policy;
}
// One box of a tensor map to shared memory. One copy of 32 KiB costs no more issue time than one of 1 KiB: measured on
// an H200, a multiprocessor starts a copy each 66 ns at best.
__device__ __forceinline__ void copy_box(u32 to, const void* map, int x, int y, int z, u32 bar, u64 policy) {
  asm volatile(
      "cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.L2::cache_hint "
      "[%0], [%1, {%2, %3, %4}], [%5], %6;" ::"r"(to),
      "l"(map), "r"(x), "r"(y), "r"(z), "r"(bar), "l"(policy)
      : "memory");
}
__device__ __forceinline__ void copy_box(u32 to, const void* map, int x, int y, int z, int w, u32 bar, u64 policy) {
  asm volatile(
      "cp.async.bulk.tensor.4d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.L2::cache_hint "
      "[%0], [%1, {%2, %3, %4, %5}], [%6], %7;" ::"r"(to),
      "l"(map), "r"(x), "r"(y), "r"(z), "r"(w), "r"(bar), "l"(policy)
      : "memory");
}

// Written by other multiprocessors in this launch: L1 may hold an older line, so these go to L2.
__device__ __forceinline__ uint4 load_fresh(const uint4* p) {
  uint4 v;
  asm volatile("ld.global.cg.v4.u32 {%0, %1, %2, %3}, [%4];" : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "l"(p) : "memory");
  return v;
}
__device__ __forceinline__ float load_fresh(const float* p) {
  float v;
  asm volatile("ld.global.cg.f32 %0, [%1];" : "=f"(v) : "l"(p) : "memory");
  return v;
}
__device__ __forceinline__ int load_fresh(const int* p) {
  int v;
  asm volatile("ld.global.cg.s32 %0, [%1];" : "=r"(v) : "l"(p) : "memory");
  return v;
}
__device__ __forceinline__ float4 load_fresh(const float4* p) {
  float4 v;
  asm volatile("ld.global.cg.v4.f32 {%0, %1, %2, %3}, [%4];" : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w) : "l"(p) : "memory");
  return v;
}
__device__ __forceinline__ uint4 load_shared(u32 address) {
  uint4 v;
  asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];" : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "r"(address) : "memory");
  return v;
}

__device__ __forceinline__ void store_shared(u32 address, uint4 v) {
  asm volatile("st.shared.v4.u32 [%0], {%1, %2, %3, %4};" ::"r"(address), "r"(v.x), "r"(v.y), "r"(v.z), "r"(v.w) : "memory");
}
// Four 8 x 8 blocks of 16-bit values, transposed; lane l gives the address of row l % 8 of block l / 8.
__device__ __forceinline__ uint4 load_transposed(u32 address) {
  uint4 v;
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "r"(address)
               : "memory");
  return v;
}

// Round to nearest even; not for NaN.
__device__ __forceinline__ u16 to_bf16(float x) {
  u32 bits = __float_as_uint(x);
  return (u16)((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}
__device__ __forceinline__ u32 to_bf16_pair(float low, float high) { return to_bf16(low) | (u32)to_bf16(high) << 16; }
__device__ __forceinline__ float power_of_two(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// sums[16 x 8] += A[16 x 16] B[16 x 8], bf16 in, float32 out.
__device__ __forceinline__ void multiply(float (&sums)[4], u32 a0, u32 a1, u32 a2, u32 a3, u32 b0, u32 b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
      : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
      : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

// sums[16 x 8] += A[16 x 8] B[8 x 8].
__device__ __forceinline__ void multiply(float (&sums)[4], u32 a0, u32 a1, u32 b) {
  asm volatile(
      "mma.sync.aligned.m16n8k8.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5}, {%6}, {%0, %1, %2, %3};"
      : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
      : "r"(a0), "r"(a1), "r"(b));
}

// Between ranks, whose cards share no caches: a 64-bit word arrives whole.
__device__ __forceinline__ void store_packet(u64* p, u64 packet) {
  asm volatile("st.relaxed.sys.global.u64 [%0], %1;" ::"l"(p), "l"(packet) : "memory");
}
// The value in the packet with this tag, once it is there.
__device__ __forceinline__ float await_packet(const u64* p, u32 tag) {
  u64 packet;
  do {
    asm volatile("ld.relaxed.sys.global.u64 %0, [%1];" : "=l"(packet) : "l"(p) : "memory");
  } while ((u32)(packet >> 32) != tag);
  return __uint_as_float((u32)packet);
}

__device__ __forceinline__ void consumers_meet() { asm volatile("bar.sync 1, %0;" ::"n"(CONSUMERS) : "memory"); }

// Every consumer of every program arrives before any leaves; what was written before is seen after. `arrivals` only grows
// within a launch.
__device__ __forceinline__ void grid_meets(u32* arrivals, u32 target) {
  consumers_meet();
  if (threadIdx.x == 0) {
    asm volatile("fence.acq_rel.gpu;\nred.relaxed.gpu.global.add.u32 [%0], 1;" ::"l"(arrivals) : "memory");
    u32 seen, polls = 0;
    do {
      asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(seen) : "l"(arrivals) : "memory");
      if (++polls == MAX_POLLS && GIVES_UP) __trap();
    } while (seen < target);
  }
  consumers_meet();
}
