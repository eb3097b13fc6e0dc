#pragma once
// How a producer hands stages of memory to its readers, as templates over the instructions that do it (Steps): barriers
// of a GPU (channel.cuh), or their model on the host, where channel.test.cpp tries all orders of events.
//
//   full[stage]:  the producer says how many bytes come, the copy engine counts them, readers wait
//   empty[stage]: every reader arrives when it has read, the producer waits
// A wait names the parity of the phase that must have ended: 0 for the first phase of a barrier, then 1, 0, ... A wait
// for parity 1 on a fresh barrier passes, so a producer begins with to_put() and readers with Ring{}.

#if defined(__CUDACC__)
#define HPCDL_DEVICE __device__
#else
#define HPCDL_DEVICE
#endif

namespace hpcdl::cuda {

/// A position in a ring of kStages stages and the parity to wait for.
template <int kStages> struct Ring {
  int stage = 0;
  unsigned parity = 0;

  HPCDL_DEVICE void next() {
    if (++stage == kStages) stage = 0, parity ^= 1;
  }
  HPCDL_DEVICE void skip(int n) {
    stage += n;
    parity ^= static_cast<unsigned>(stage / kStages) & 1;
    stage %= kStages;
  }
};
/// A stage and its parity, where several stages share a position in a ring.
struct Slot {
  int stage;
  unsigned parity;
};

/// How the readers of a stage read what is written next.
enum class Reads {
  tensor_cores,  // by products or copies that have been waited for: no arrival overtakes them
  registers,     // by loads of what the copy engine writes. An arrival overtakes loads whose values nothing has used
                 // yet, and the copy engine would write over them: done() has a fence
  ordinary,      // by loads of what threads write
};

/// kCount arrivals at a barrier, each by one of kEach threads.
template <int kCount_, int kEach_> struct Arriving {
  static constexpr int kCount = kCount_, kEach = kEach_;
};
template <int kCount> using Threads = Arriving<kCount, 1>;
template <int kCount> using Warps = Arriving<kCount, 32>;
template <int kCount> using Warpgroups = Arriving<kCount, 128>;

struct Mbarriers;  // channel.cuh

/// Stages of which readers know only that they are full. By default one thread expects what the copy engine brings.
template <int kStages_, class Writers = Threads<1>, class Steps = Mbarriers> struct Arrivals {
  using Barrier = typename Steps::Barrier;
  static constexpr int kStages = kStages_, kBarriers = kStages;
  Barrier* full;

  HPCDL_DEVICE void init() const {
    for (int i = 0; i < kStages; ++i) Steps::init(full + i, Writers::kCount);
  }
  /// Arrives, and lets the stage wait for `bytes` more from the copy engine, which count at the barrier returned.
  template <class At> HPCDL_DEVICE Barrier* expect(const At& at, unsigned bytes) const {
    Steps::expect(full + at.stage, bytes);
    return full + at.stage;
  }
  /// Waits until the stage is full.
  template <class At> HPCDL_DEVICE void get(const At& at) const { Steps::wait(full + at.stage, at.parity); }
};

/// Stages that Readers, of each of the kBlocks blocks of a cluster, give back.
template <int kStages, class Readers, Reads kReads, int kBlocks = 1, class Writers = Threads<1>,
          class Steps = Mbarriers>
struct Channel : Arrivals<kStages, Writers, Steps> {
  using typename Arrivals<kStages, Writers, Steps>::Barrier;
  using Arrivals<kStages, Writers, Steps>::full;
  static constexpr int kBarriers = 2 * kStages;

  HPCDL_DEVICE void init() const {
    Arrivals<kStages, Writers, Steps>::init();
    for (int i = 0; i < kStages; ++i) Steps::init(empty(i), Readers::kCount * kBlocks);
  }
  HPCDL_DEVICE Barrier* empty(int stage) const { return full + kStages + stage; }
  /// Where the producer begins.
  HPCDL_DEVICE static constexpr Ring<kStages> to_put() { return {.stage = 0, .parity = 1}; }
  /// Waits until the stage is empty.
  template <class At> HPCDL_DEVICE void wait_empty(const At& at) const { Steps::wait(empty(at.stage), at.parity); }
  /// Then expects bytes.
  template <class At> HPCDL_DEVICE Barrier* put(const At& at, unsigned bytes) const {
    wait_empty(at);
    return this->expect(at, bytes);
  }
  /// Called by all Writers when they have filled a stage themselves.
  template <class At> HPCDL_DEVICE void filled(const At& at) const {
    if constexpr (kReads == Reads::tensor_cores) Steps::template fence<Writers::kEach>();
    Steps::template arrive<Writers::kEach, 1>(full + at.stage);
  }
  /// Called by all Readers when they have read a stage.
  HPCDL_DEVICE void done(int stage) const {
    if constexpr (kReads == Reads::registers) Steps::template fence<Readers::kEach>();
    if constexpr (kReads == Reads::ordinary) Steps::template meet<Readers::kEach>();
    fenced_done(stage);
  }
  /// The same, by readers that called fence_async_proxy() after their loads.
  HPCDL_DEVICE void fenced_done(int stage) const { Steps::template arrive<Readers::kEach, kBlocks>(empty(stage)); }
};

/// Stages into which other blocks send kBytes each.
template <int kStages, int kBytes, class Steps = Mbarriers> struct Mailbox : Arrivals<kStages, Threads<1>, Steps> {
  HPCDL_DEVICE void init() const {
    Arrivals<kStages, Threads<1>, Steps>::init();
    for (int i = 0; i < kStages; ++i) this->expect(Slot{i, 0}, kBytes);
  }
  /// Waits for them. `again`: true in one thread, which expects the next ones.
  template <class At> HPCDL_DEVICE void get(const At& at, bool again) const {
    Arrivals<kStages, Threads<1>, Steps>::get(at);
    if (again) this->expect(at, kBytes);
  }
};

#undef HPCDL_DEVICE

}  // namespace hpcdl::cuda
