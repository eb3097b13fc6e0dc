#pragma once
// Shared memory of a kernel as a list of parts, whose places are known at compile time.
//
//   template <class S> struct Memory : Arena<Room<unsigned char, S::kStages * S::kStageBytes, 1024>, Stages<S>> {
//     __device__ unsigned char* stage(int i) const { return this->template part<0>() + i * S::kStageBytes; }
//     __device__ auto stages() const { return this->template part<1>(); }
//   };
// A kernel is launched with Memory::kBytes after allow_shared(), and begins with start().

#include <atomic>
#include <tuple>
#include <utility>

#include "hpcdl/cuda/arch.cuh"
#include "hpcdl/cuda/tile/channel.cuh"

namespace hpcdl::cuda {

/// kCount elements.
template <class T, int kCount, int kAlign_ = alignof(T)> struct Room {
  static constexpr int kBytes = kCount * static_cast<int>(sizeof(T)), kAlign = kAlign_;
  __device__ static T* at(unsigned char* p) { return reinterpret_cast<T*>(p); }
};
/// The barriers of a Channel, of Arrivals or of a Mailbox.
template <class C> struct Stages {
  static constexpr int kBytes = C::kBarriers * 8, kAlign = 8;
  __device__ static C at(unsigned char* p) { return C{reinterpret_cast<Barrier*>(p)}; }
};

/// Called by all threads: one calls init() for the barriers, and fetches maps before their first use.
template <int kBlocks = 1, class F, class... Maps> __device__ void start_block(F&& init, const Maps&... maps) {
  if (threadIdx.x == 0) {
    init();
    Mbarriers::publish();
    (tma_prefetch(maps), ...);
  }
  if constexpr (kBlocks > 1) cluster_sync();
  else __syncthreads();
}

/// Where part `count` begins, or the last one ends.
template <class... Parts> constexpr int place_of(int count) {
  constexpr int bytes[] = {0, Parts::kBytes...}, aligns[] = {Parts::kAlign..., 1};
  int at = 0;
  for (int i = 0; i <= count; ++i) at = (at + bytes[i] + aligns[i] - 1) / aligns[i] * aligns[i];
  return at;
}

template <class... Parts> struct Arena {
  unsigned char* base;

  __device__ Arena() {
    extern __shared__ __align__(1024) unsigned char arena_memory[];
    base = arena_memory;
  }
  static constexpr int kBytes = place_of<Parts...>(sizeof...(Parts));
  static_assert(kBytes <= 227 * 1024, "a block has at most 227 KiB of shared memory");

  template <int i> __device__ auto part() const {
    using Part = std::tuple_element_t<i, std::tuple<Parts...>>;
    constexpr int kPlace = place_of<Parts...>(i);
    return Part::at(base + kPlace);
  }
  template <int kBlocks = 1, class... Maps> __device__ void start(const Maps&... maps) const {
    start_block<kBlocks>([this] { init(std::make_integer_sequence<int, sizeof...(Parts)>{}); }, maps...);
  }

 private:
  template <int... i> __device__ void init(std::integer_sequence<int, i...>) const {
    const auto one = [](const auto& part) {
      if constexpr (requires { part.init(); }) part.init();
    };
    (one(part<i>()), ...);
  }
};

/// Lets a kernel have that much shared memory, once per device.
template <auto kKernel> void allow_shared(const Stream& s, int bytes) {
  static std::atomic<std::uint64_t> allowed = 0;  // bit per device
  const auto bit = std::uint64_t{1} << (s.device().index % 64);
  if ((allowed.load(std::memory_order_relaxed) & bit) != 0) return;
  check(cudaFuncSetAttribute(kKernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes), "cudaFuncSetAttribute");
  allowed.fetch_or(bit);
}

}  // namespace hpcdl::cuda
