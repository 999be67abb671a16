// What the sampler needs of the machine: shared memory of the other blocks of a cluster, meetings, dependent launch.
// Included by text: NVRTC sees no files. The tests put a file of the same names in its place, which runs on a CPU.

typedef unsigned int u32;
typedef unsigned long long u64;
typedef long long i64;

#define KERNEL(name) extern "C" __global__ void __launch_bounds__(THREADS, 1) __cluster_dims__(CLUSTER, 1, 1) name
#define DEVICE __device__ __forceinline__
#define INFINITY __int_as_float(0x7f800000)

DEVICE unsigned char* shared_memory() {
  extern __shared__ __align__(128) unsigned char memory[];
  return memory;
}

// Which block of its cluster this is.
DEVICE u32 cluster_rank() { return blockIdx.x; }

// The same variable in the shared memory of block `rank`.
template <typename T>
DEVICE T* at_block(T* own, u32 rank) {
  u64 there;
  asm("mapa.u64 %0, %1, %2;" : "=l"(there) : "l"((u64)own), "r"(rank));
  return (T*)there;
}

DEVICE void cluster_arrive() { asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory"); }
DEVICE void cluster_wait() { asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory"); }

DEVICE void await_previous_kernel() {
  asm volatile("griddepcontrol.wait;\ngriddepcontrol.launch_dependents;" ::: "memory");
}
