// Load for some multiprocessors of a card: a block takes a whole one and works for a given time.

typedef unsigned int u32;
typedef unsigned long long u64;

struct Load {
  const uint4* data;
  u64 num_vectors;
  // Bytes read by each block.
  u64* counts;
  u64 kind, for_ns, pause_ns;
};

enum Kind { IDLE, MULTIPLY, READ };

__device__ __forceinline__ u64 now_ns() {
  u64 t;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(t));
  return t;
}

__device__ __forceinline__ void multiply(float (&sums)[4], u32 a, u32 b) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %4, %4, %4}, {%5, %5}, {%0, %1, %2, %3};"
      : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
      : "r"(a), "r"(b));
}

extern "C" __global__ void __cluster_dims__(2, 1, 1) __launch_bounds__(512, 1) load(const __grid_constant__ Load p) {
  constexpr int AT_ONCE = 8;
  u64 end = now_ns() + p.for_ns, read = 0;
  u64 stride = (u64)gridDim.x * blockDim.x, at = (u64)blockIdx.x * blockDim.x + threadIdx.x;
  float sums[4][4] = {};
  u32 a = 0x3f803f80u + threadIdx.x, b = 0xbf80bf80u + threadIdx.x, seen = 0;
  while (now_ns() < end) {
    if (p.kind == MULTIPLY) {
#pragma unroll 8
      for (int i = 0; i < 64; ++i)
#pragma unroll
        for (int j = 0; j < 4; ++j) multiply(sums[j], a, b);
    } else if (p.kind == READ) {
      uint4 v[AT_ONCE];
#pragma unroll
      for (int i = 0; i < AT_ONCE; ++i) {
        asm volatile("ld.global.cg.v4.u32 {%0, %1, %2, %3}, [%4];"
                     : "=r"(v[i].x), "=r"(v[i].y), "=r"(v[i].z), "=r"(v[i].w)
                     : "l"(p.data + at));
        at += stride;
        if (at >= p.num_vectors) at -= p.num_vectors;
      }
#pragma unroll
      for (int i = 0; i < AT_ONCE; ++i) seen ^= v[i].x ^ v[i].y ^ v[i].z ^ v[i].w;
      read += AT_ONCE * 16 * blockDim.x;
      if (p.pause_ns) __nanosleep((u32)p.pause_ns);
    } else {
      __nanosleep(1000);
    }
  }
  if (threadIdx.x == 0) p.counts[blockIdx.x] = read;
  if (seen == 1 && sums[0][0] + sums[1][0] + sums[2][0] + sums[3][0] == 1.0f) p.counts[blockIdx.x] = 0;
}
