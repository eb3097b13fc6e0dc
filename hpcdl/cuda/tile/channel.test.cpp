// Every order of events in which channels (protocol.h) may run, on a model of barriers, copies and loads: producers and
// readers of one block or of a cluster of two hand on six stages. The channel's own code writes down what each thread
// does; as it never looks at data, that does not depend on the order, and all orders are tried on the result.
//
// What hardware may delay is taken to be delayed as long as it can be: a copy may write from its issue until its bytes
// are counted, which may happen at any time; a load may read until a fence, or whatever the thread waits for, has
// passed, however early its thread arrives elsewhere. Reading what has not arrived, writing what may still be read, and
// states that nothing can leave are faults. Variants of the protocol with one wrong line each must be found.

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <string>
#include <unordered_set>
#include <vector>

#include "hpcdl/cuda/tile/protocol.h"

namespace hpcdl::cuda {
namespace {

constexpr int kSteps = 6, kMostStages = 3, kMostBlocks = 2, kMostReaders = 3;

struct Event {
  enum Kind : std::uint8_t { wait, expect, copy, read, settle, arrive } kind;
  std::uint8_t barrier;  // of the thread's block
  std::uint8_t value;    // parity; bytes; number of the step
  std::uint8_t blocks;   // that it reaches: one bit each, relative to the thread's block
};
using Thread = std::vector<Event>;

/// Instructions that write down instead of acting.
struct Recorded {
  struct Barrier {
    unsigned arrivals = 0;
  };
  static inline Thread* thread = nullptr;
  static inline Barrier* barriers = nullptr;

  static void add(Event::Kind kind, const Barrier* b, unsigned value, int blocks = 1) {
    thread->push_back({kind, static_cast<std::uint8_t>(b - barriers), static_cast<std::uint8_t>(value),
                       static_cast<std::uint8_t>(blocks)});
  }
  static void init(Barrier* b, unsigned arrivals) { b->arrivals = arrivals; }
  static void wait(Barrier* b, unsigned parity) { add(Event::wait, b, parity); }
  static void expect(Barrier* b, unsigned bytes) { add(Event::expect, b, bytes); }
  template <int kEach, int kBlocks> static void arrive(Barrier* b) {
    for (int i = 0; i < kBlocks; ++i) add(Event::arrive, b, 0, 1 << i);
  }
  template <int kEach> static void meet() {}
  template <int kEach> static void fence() { add(Event::settle, barriers, 0); }
};

/// A channel with what its readers do with a stage.
template <int kStages, int kReaders_, Reads kReads_, int kBlocks_, class Steps = Recorded>
struct Whole : Channel<kStages, Warps<kReaders_>, kReads_, kBlocks_, Threads<1>, Steps> {
  static constexpr int kReaders = kReaders_, kBlocks = kBlocks_;
  static constexpr Reads kReads = kReads_;

  using Position = Ring<kStages>;
  static Position to_get() { return {}; }
  void read(int stage, int step) const { Recorded::add(Event::read, this->full + stage, static_cast<unsigned>(step)); }
  /// Products have been waited for; a load may read at any later time.
  void settle() const {
    if (kReads == Reads::tensor_cores) Recorded::add(Event::settle, this->full, 0);
  }
  void use(int stage, int step) const { read(stage, step), settle(), this->done(stage); }
};

/// What the producer of a block does, and each of its readers. A stage has one part from the producer of each block,
/// which copies it to all blocks.
template <class C> struct Plan {
  std::array<Recorded::Barrier, 2 * kMostStages> barriers;
  Thread producer, reader;

  Plan() {
    Recorded::barriers = barriers.data();
    const C channel{barriers.data()};
    channel.init();
    Recorded::thread = &producer;
    auto to = channel.to_put();
    for (int step = 0; step < kSteps; ++step, to.next())
      Recorded::add(Event::copy, channel.put(to, C::kBlocks), static_cast<unsigned>(step), (1 << C::kBlocks) - 1);
    Recorded::thread = &reader;
    auto from = channel.to_get();
    for (int step = 0; step < kSteps; ++step, from.next()) {
      channel.get(from);
      channel.use(from.stage, step);
    }
  }
};

/// All that can happen. `short_cuts`: events are taken together where that hides nothing (goes_on()).
class Model {
 public:
  template <class C>
  Model(const Plan<C>& plan, bool short_cuts)
      : stages_(C::kStages),
        readers_(C::kReaders),
        blocks_(C::kBlocks),
        short_cuts_(short_cuts),
        plan_{&plan.producer, &plan.reader} {
    for (int b = 0; b < 2 * stages_; ++b) arrivals_[b] = static_cast<std::int8_t>(plan.barriers[b].arrivals);
  }

  /// The first fault found, or "none".
  std::string fault() {
    State first = {};
    for (int block = 0; block < blocks_; ++block)
      for (int b = 0; b < 2 * stages_; ++b) first.barriers[block][b] = {0, arrivals_[b], 0};
    std::vector<State> open = {first};
    seen_.insert(key(first));
    while (!open.empty() && fault_.empty()) {
      const State now = open.back();
      open.pop_back();
      bool ended = true, stuck = true;
      const auto reach = [&](State next) {
        stuck = false;
        order(next);
        if (seen_.insert(key(next)).second) open.push_back(next);
      };
      for (int block = 0; block < blocks_; ++block) {
        for (int i = 0; i <= readers_; ++i) {
          const Thread& thread = *plan_[i > 0];
          if (now.blocks[block].threads[i].next == thread.size()) continue;
          ended = false;
          State next = now;
          if (!run(next, block, i, thread)) continue;
          while (goes_on(thread, next.blocks[block].threads[i].next)) run(next, block, i, thread);
          reach(next);
        }
        for (int stage = 0; stage < stages_; ++stage)
          for (int halves = 1; halves < 1 << blocks_; ++halves)
            if (State next = now; land(next, block, stage, halves)) reach(next);
      }
      if (stuck && !ended && fault_.empty()) fault_ = "no step is possible";
    }
    return fault_.empty() ? "none" : fault_;
  }

 private:
  struct Barrier {
    std::uint8_t phase;
    std::int8_t missing, bytes;  // arrivals; bytes that are expected and have not come
  };
  struct Progress {
    std::uint8_t next, reading;  // event; bit per stage
    auto operator<=>(const Progress&) const = default;
  };
  struct Block {
    std::array<Progress, 1 + kMostReaders> threads;
    std::array<std::uint8_t, kMostStages * kMostBlocks> coming, here;  // of each half of a stage: 1 + step, or 0
  };
  struct State {
    std::array<Block, kMostBlocks> blocks;
    std::array<std::array<Barrier, 2 * kMostStages>, kMostBlocks> barriers;
  };
  static_assert(sizeof(State) == 2 * (8 + 12 + 18), "no padding: states are compared as bytes");
  using Key = std::array<std::uint64_t, 2>;
  struct First {
    std::size_t operator()(const Key& k) const { return k[0]; }
  };

  /// 128 bits stand for a state: of 10^8 states two are mistaken for each other with a chance of 10^-22.
  static Key key(const State& s) {
    std::array<std::uint64_t, 10> words = {};
    std::memcpy(words.data(), &s, sizeof s);
    Key k = {0x9e3779b97f4a7c15u, 0xc2b2ae3d27d4eb4fu};
    for (const std::uint64_t w : words)
      for (int i = 0; i < 2; ++i) {
        k[i] = (k[i] ^ w) * (i == 0 ? 0xff51afd7ed558ccdu : 0xc4ceb9fe1a85ec53u);
        k[i] ^= k[i] >> 32;
      }
    return k;
  }
  /// Readers of a block do the same, and so do blocks: of states that differ only in who is who, one is enough.
  void order(State& s) const {
    for (int b = 0; b < blocks_; ++b)
      std::sort(s.blocks[b].threads.begin() + 1, s.blocks[b].threads.begin() + 1 + readers_);
    if (blocks_ == 1) return;
    State other = s;
    std::swap(other.blocks[0], other.blocks[1]), std::swap(other.barriers[0], other.barriers[1]);
    for (Block& b : other.blocks)
      for (int i = 0; i < stages_; ++i)
        std::swap(b.coming[2 * i], b.coming[2 * i + 1]), std::swap(b.here[2 * i], b.here[2 * i + 1]);
    if (std::memcmp(&other, &s, sizeof s) < 0) s = other;
  }
  void found(const char* what) {
    if (fault_.empty()) fault_ = what;
  }
  void arrived(Barrier& b, int barrier, int missing, int bytes) {
    b.missing = static_cast<std::int8_t>(b.missing + missing), b.bytes = static_cast<std::int8_t>(b.bytes + bytes);
    if (b.missing < 0) found("a barrier gets more arrivals than it has");
    if (b.missing == 0 && b.bytes == 0) b.phase ^= 1, b.missing = arrivals_[barrier];
  }
  bool is_read(const Block& block, int stage) const {
    return std::any_of(block.threads.begin() + 1, block.threads.begin() + 1 + readers_,
                       [&](const Progress& p) { return p.reading >> stage & 1; });
  }
  /// One event of a thread; false if it has to wait.
  bool run(State& s, int block, int number, const Thread& thread) {
    Progress& at = s.blocks[block].threads[number];
    const Event& e = thread[at.next];
    const int stage = e.barrier % stages_;
    switch (e.kind) {
      case Event::wait:
        if ((s.barriers[block][e.barrier].phase & 1) == e.value) return false;
        break;
      case Event::expect: arrived(s.barriers[block][e.barrier], e.barrier, -1, e.value); break;
      case Event::arrive:
        for (int b = 0; b < blocks_; ++b)
          if (e.blocks >> b & 1) arrived(s.barriers[block ^ b][e.barrier], e.barrier, -1, 0);
        break;
      case Event::copy:
        for (int b = 0; b < blocks_; ++b) {
          Block& to = s.blocks[b];
          const int half = stage * blocks_ + block;
          if (is_read(to, stage)) found("a copy writes what is still read");
          if (to.coming[half] != 0) found("two copies write the same");
          to.coming[half] = static_cast<std::uint8_t>(1 + e.value);
        }
        break;
      case Event::read:
        for (int half = stage * blocks_; half < (stage + 1) * blocks_; ++half)
          if (s.blocks[block].coming[half] != 0 || s.blocks[block].here[half] != 1 + e.value)
            found("a reader reads what has not arrived");
        at.reading = static_cast<std::uint8_t>(at.reading | 1 << stage);
        break;
      case Event::settle: at.reading = 0; break;
    }
    ++at.next;
    return true;
  }
  /// Whether event i follows the one before it at once. What never waits is taken as early as it can be if it begins an
  /// access or lets others go on, and as late as it can be if it ends an access: whoever could go on in another order
  /// can in this one, and every access lasts as long.
  bool goes_on(const Thread& thread, std::size_t i) const {
    if (i == thread.size() || !short_cuts_) return false;
    const auto before = thread[i - 1].kind, kind = thread[i].kind;
    return kind == Event::expect || kind == Event::copy || kind == Event::read ||
           (kind == Event::arrive && (before == Event::settle || before == Event::arrive));
  }
  /// For the same reason copies land when they end the phase of a barrier, these halves of a stage together; false if
  /// they do not.
  bool land(State& s, int block, int stage, int halves) {
    Block& b = s.blocks[block];
    const Barrier full = s.barriers[block][stage];
    int count = 0;
    for (int i = 0; i < blocks_; ++i)
      if (halves >> i & 1) {
        const int half = stage * blocks_ + i;
        if (b.coming[half] == 0) return false;
        b.here[half] = b.coming[half], b.coming[half] = 0, ++count;
      }
    if (short_cuts_ ? full.missing != 0 || full.bytes != count : count != 1) return false;
    arrived(s.barriers[block][stage], stage, 0, -count);
    return true;
  }

  int stages_, readers_, blocks_;
  bool short_cuts_;
  std::array<const Thread*, 2> plan_;
  std::array<std::int8_t, 2 * kMostStages> arrivals_ = {};
  std::unordered_set<Key, First> seen_;
  std::string fault_;
};

template <class C> std::string fault_of(bool short_cuts = true) { return Model(Plan<C>(), short_cuts).fault(); }

/// f<stages, readers>() for 1-3 each.
template <class F> void with_each(F&& f) {
  const auto with = [&]<int kStages>() {
    f.template operator()<kStages, 1>();
    f.template operator()<kStages, 2>();
    f.template operator()<kStages, 3>();
  };
  with.template operator()<1>();
  with.template operator()<2>();
  with.template operator()<3>();
}
template <int kBlocks> void expect_no_fault(bool short_cuts, int most_readers = 3) {
  with_each([&]<int kStages, int kReaders>() {
    if (kReaders > most_readers) return;
    SCOPED_TRACE(fmt::format("{} stages, {} readers, {} blocks", kStages, kReaders, kBlocks));
    EXPECT_EQ((fault_of<Whole<kStages, kReaders, Reads::tensor_cores, kBlocks>>(short_cuts)), "none");
    EXPECT_EQ((fault_of<Whole<kStages, kReaders, Reads::registers, kBlocks>>(short_cuts)), "none");
  });
}
TEST(channel, every_order_of_one_block_is_right) { expect_no_fault<1>(false); }
TEST(channel, every_order_of_a_cluster_is_right) { expect_no_fault<2>(true); }
TEST(channel, short_cuts_hide_nothing) {
  expect_no_fault<1>(true);
  expect_no_fault<2>(false, 1);
}

// ---------------------------------------------------------------- one fault each

struct NoFence : Recorded {
  template <int kEach> static void fence() {}
};
struct OneReaderLess : Recorded {
  static void init(Barrier* b, unsigned arrivals) { Recorded::init(b, arrivals > 1 ? arrivals - 1 : 1); }
};
struct OneReaderMore : Recorded {
  static void init(Barrier* b, unsigned arrivals) { Recorded::init(b, arrivals > 1 ? arrivals + 1 : 1); }
};
struct OneByteLess : Recorded {
  static void expect(Barrier* b, unsigned bytes) { Recorded::expect(b, bytes - 1); }
};
struct OneByteMore : Recorded {
  static void expect(Barrier* b, unsigned bytes) { Recorded::expect(b, bytes + 1); }
};
struct OwnBlockOnly : Recorded {
  template <int kEach, int kBlocks> static void arrive(Barrier* b) { Recorded::arrive<kEach, 1>(b); }
};
struct OwnBlockTwice : Recorded {
  template <int kEach, int kBlocks> static void arrive(Barrier* b) {
    for (int i = 0; i < kBlocks; ++i) Recorded::arrive<kEach, 1>(b);
  }
};
struct OtherPhase : Recorded {
  static void wait(Barrier* b, unsigned parity) { Recorded::wait(b, parity ^ 1); }
};
struct NoWait : Recorded {
  static void wait(Barrier*, unsigned) {}
};

template <class C> struct PutsFromPhase0 : C {
  static auto to_put() { return typename C::Position{.stage = 0, .parity = 0}; }
};
template <class C> struct GetsFromPhase1 : C {
  static auto to_get() { return typename C::Position{.stage = 0, .parity = 1}; }
};
template <class C> struct KeepsItsPhase : C {
  struct Position : C::Position {
    void next() { this->stage = (this->stage + 1) % C::kStages; }
  };
  static Position to_get() { return {}; }
};
template <class C> struct PutsWithoutWaiting : C {
  template <class At> auto put(const At& at, unsigned bytes) const { return this->expect(at, bytes); }
};
template <class C> struct GetsWithoutWaiting : C {
  template <class At> void get(const At&) const {}
};
template <class C> struct DoneBeforeItReads : C {
  void use(int stage, int step) const { this->done(stage), this->read(stage, step), this->settle(); }
};
template <class C> struct DoneBeforeProductsAre : C {
  void use(int stage, int step) const { this->read(stage, step), this->done(stage), this->settle(); }
};
template <class C> struct GivesBackTheNextStage : C {
  void use(int stage, int step) const { this->read(stage, step), this->settle(), this->done((stage + 1) % C::kStages); }
};

constexpr char kOverwritten[] = "a copy writes what is still read", kEarly[] = "a reader reads what has not arrived",
               kStuck[] = "no step is possible";
template <int kBlocks, class Steps = Recorded> using Loads = Whole<2, 2, Reads::registers, kBlocks, Steps>;
template <int kBlocks, class Steps = Recorded> using Products = Whole<2, 2, Reads::tensor_cores, kBlocks, Steps>;

template <template <int, class> class C, int kBlocks> void expect_faults_of_steps() {
  SCOPED_TRACE(kBlocks);
  EXPECT_NE((fault_of<C<kBlocks, OneReaderLess>>()), "none");
  EXPECT_EQ((fault_of<C<kBlocks, OneReaderMore>>()), kStuck);
  EXPECT_EQ((fault_of<C<kBlocks, OneByteLess>>()), kEarly);
  EXPECT_EQ((fault_of<C<kBlocks, OneByteMore>>()), kStuck);
  EXPECT_EQ((fault_of<C<kBlocks, OtherPhase>>()), kEarly);
  EXPECT_NE((fault_of<C<kBlocks, NoWait>>()), "none");
}
TEST(channel, faults_of_steps_are_found) {
  expect_faults_of_steps<Loads, 1>();
  expect_faults_of_steps<Loads, 2>();
  expect_faults_of_steps<Products, 1>();
  expect_faults_of_steps<Products, 2>();
  EXPECT_EQ((fault_of<Loads<1, NoFence>>()), kOverwritten);
  EXPECT_EQ((fault_of<Loads<2, NoFence>>()), kOverwritten);
  EXPECT_EQ((fault_of<Loads<2, OwnBlockOnly>>()), kStuck);
  EXPECT_NE((fault_of<Loads<2, OwnBlockTwice>>()), "none");
}
template <class C> void expect_faults_of_use() {
  EXPECT_EQ(fault_of<PutsFromPhase0<C>>(), kStuck);
  EXPECT_EQ(fault_of<GetsFromPhase1<C>>(), kEarly);
  EXPECT_EQ(fault_of<KeepsItsPhase<C>>(), kEarly);
  EXPECT_NE(fault_of<PutsWithoutWaiting<C>>(), "none");
  EXPECT_EQ(fault_of<GetsWithoutWaiting<C>>(), kEarly);
  EXPECT_NE(fault_of<GivesBackTheNextStage<C>>(), "none");
}
TEST(channel, faults_of_use_are_found) {
  expect_faults_of_use<Loads<1>>();
  expect_faults_of_use<Loads<2>>();
  expect_faults_of_use<Products<1>>();
  expect_faults_of_use<Products<2>>();
  EXPECT_EQ(fault_of<DoneBeforeItReads<Loads<1>>>(), kOverwritten);
  EXPECT_EQ(fault_of<DoneBeforeProductsAre<Products<1>>>(), kOverwritten);
  EXPECT_EQ(fault_of<DoneBeforeProductsAre<Products<2>>>(), kOverwritten);
}

}  // namespace
}  // namespace hpcdl::cuda
