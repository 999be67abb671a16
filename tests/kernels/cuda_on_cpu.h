// Runs a cluster of CUDA thread blocks on one CPU thread: each CUDA thread is a fiber, a barrier yields until all of its
// group have come. Slow, exact, and the same every time. Takes the place of a kernel's `primitives.cuh`.
#pragma once

#include <ucontext.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <vector>

typedef unsigned int u32;
typedef unsigned long long u64;
typedef long long i64;

#define KERNEL(name) void name
#define DEVICE inline

struct float4 {
  float x, y, z, w;
};
struct int4 {
  int x, y, z, w;
};
struct Index {
  u32 x = 0, y = 0, z = 0;
};

using std::max;
using std::min;

namespace cpu {

struct Barrier {
  int size, num_come = 0;
  u64 turn = 0;
};

struct Fiber {
  ucontext_t context;
  std::vector<char> stack;
  u32 thread, block;
  u64 cluster_turn = 0;
  bool is_done = false;
};

struct Machine {
  std::vector<Fiber> fibers;
  std::vector<std::vector<unsigned char>> shared;
  std::vector<Barrier> block_barriers, warp_barriers;
  std::vector<u64> lanes;
  Barrier cluster{0};
  ucontext_t scheduler;
  Fiber* now = nullptr;
  void (*entry)() = nullptr;
};

inline Machine machine;

inline void yield() { swapcontext(&machine.now->context, &machine.scheduler); }

inline u64 arrive(Barrier& barrier) {
  u64 turn = barrier.turn;
  if (++barrier.num_come == barrier.size) {
    barrier.num_come = 0;
    ++barrier.turn;
  }
  return turn;
}

inline void await(Barrier& barrier, u64 turn) {
  while (barrier.turn == turn) yield();
}

inline u32 warp_index() { return machine.now->block * (THREADS / 32) + machine.now->thread / 32; }

inline void meet_warp() {
  Barrier& barrier = machine.warp_barriers[warp_index()];
  await(barrier, arrive(barrier));
}

// Every lane gives a value and takes another's.
template <typename T>
T exchange(T value, u32 from) {
  u64* lanes = &machine.lanes[warp_index() * 32];
  std::memcpy(&lanes[machine.now->thread % 32], &value, sizeof(T));
  meet_warp();
  T taken;
  std::memcpy(&taken, &lanes[from], sizeof(T));
  meet_warp();
  return taken;
}

inline void run_fiber() {
  machine.entry();
  machine.now->is_done = true;
  swapcontext(&machine.now->context, &machine.scheduler);
}

// All threads of one cluster, to their end.
inline void run_cluster(void (*entry)(), u32 shared_bytes) {
  constexpr u32 num_fibers = CLUSTER * THREADS;
  machine.entry = entry;
  machine.fibers.resize(num_fibers);
  machine.shared.assign(CLUSTER, std::vector<unsigned char>(shared_bytes + 128, 0xA5));
  machine.block_barriers.assign(CLUSTER, Barrier{THREADS});
  machine.warp_barriers.assign(num_fibers / 32, Barrier{32});
  machine.lanes.assign(num_fibers, 0);
  machine.cluster = Barrier{num_fibers};
  for (u32 i = 0; i < num_fibers; ++i) {
    Fiber& fiber = machine.fibers[i];
    fiber.thread = i % THREADS, fiber.block = i / THREADS, fiber.is_done = false;
    fiber.stack.resize(48 << 10);
    getcontext(&fiber.context);
    fiber.context.uc_stack.ss_sp = fiber.stack.data();
    fiber.context.uc_stack.ss_size = fiber.stack.size();
    fiber.context.uc_link = nullptr;
    makecontext(&fiber.context, run_fiber, 0);
  }
  for (u32 num_done = 0; num_done < num_fibers;)
    for (Fiber& fiber : machine.fibers) {
      if (fiber.is_done) continue;
      machine.now = &fiber;
      swapcontext(&machine.scheduler, &fiber.context);
      num_done += fiber.is_done;
    }
}

inline Index block_index;

}  // namespace cpu

#define threadIdx (Index{cpu::machine.now->thread})
#define blockIdx (Index{cpu::machine.now->block, cpu::block_index.y})

inline unsigned char* shared_memory() {
  unsigned char* memory = cpu::machine.shared[cpu::machine.now->block].data();
  return memory + (128 - (size_t)memory % 128) % 128;
}
inline u32 cluster_rank() { return cpu::machine.now->block; }
template <typename T>
T* at_block(T* own, u32 rank) {
  auto base = [](u32 block) {
    unsigned char* memory = cpu::machine.shared[block].data();
    return memory + (128 - (size_t)memory % 128) % 128;
  };
  return (T*)((unsigned char*)own - base(cpu::machine.now->block) + base(rank));
}
inline void cluster_arrive() { cpu::machine.now->cluster_turn = cpu::arrive(cpu::machine.cluster); }
inline void cluster_wait() { cpu::await(cpu::machine.cluster, cpu::machine.now->cluster_turn); }
inline void await_previous_kernel() {}

inline void __syncthreads() {
  cpu::Barrier& barrier = cpu::machine.block_barriers[cpu::machine.now->block];
  cpu::await(barrier, cpu::arrive(barrier));
}
template <typename T>
T __shfl_xor_sync(u32, T value, int mask) {
  return cpu::exchange(value, (threadIdx.x % 32) ^ mask);
}
template <typename T>
T __shfl_up_sync(u32, T value, int delta) {
  int lane = threadIdx.x % 32;
  return cpu::exchange(value, lane >= delta ? lane - delta : lane);
}

template <typename T>
T __shfl_sync(u32, T value, int lane) {
  return cpu::exchange(value, lane);
}

template <typename T>
T atomicAdd(T* at, T value) {
  T before = *at;
  *at += value;
  return before;
}
inline u32 atomicAdd(u32* at, int value) { return atomicAdd(at, (u32)value); }
inline void atomicMax(int* at, int value) { *at = std::max(*at, value); }
inline void atomicMin(int* at, int value) { *at = std::min(*at, value); }

inline u64 __umul64hi(u64 a, u64 b) { return (u64)(((unsigned __int128)a * b) >> 64); }
template <typename To, typename From>
To bits_as(From value) {
  To result;
  static_assert(sizeof(To) == sizeof(From));
  std::memcpy(&result, &value, sizeof(To));
  return result;
}
inline int __float_as_int(float value) { return bits_as<int>(value); }
inline float __int_as_float(int value) { return bits_as<float>(value); }
inline double __longlong_as_double(i64 value) { return bits_as<double>(value); }
// Compiled without contraction: no operation below is fused with another.
inline double __dadd_rn(double a, double b) { return a + b; }
inline double __dsub_rn(double a, double b) { return a - b; }
inline double __dmul_rn(double a, double b) { return a * b; }
inline double __ddiv_rn(double a, double b) { return a / b; }
