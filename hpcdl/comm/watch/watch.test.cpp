// Watchdogs of ranks that are threads of one process.

#include "hpcdl/comm/watch/watch.h"

#include <gtest/gtest.h>

#include <atomic>
#include <thread>

#include "hpcdl/buffer.h"
#include "hpcdl/comm/transport/threads.h"
#include "hpcdl/pool.h"

namespace hpcdl::comm {
namespace {

using namespace std::chrono_literals;

/// Neither sends nor receives while `mute`: a frozen process.
class MuteChannel final : public Channel {
 public:
  MuteChannel(std::unique_ptr<Channel> below, std::atomic<bool>& mute) : below_(std::move(below)), mute_(mute) {}
  int rank() const override { return below_->rank(); }
  int size() const override { return below_->size(); }
  std::string host(int rank) const override { return below_->host(rank); }
  void send(int to, std::string_view bytes) override {
    if (!mute_) below_->send(to, bytes);
  }
  void finish() override {
    if (!mute_) below_->finish();
  }
  void listen(OnMessage on_message, OnLost on_lost) override {
    if (!on_message) return below_->listen({}, {});
    below_->listen(
        [this, f = std::move(on_message)](int from, std::string_view bytes) { mute_ ? void() : f(from, bytes); },
        [this, f = std::move(on_lost)](int rank, const std::string& why) { mute_ ? void() : f(rank, why); });
  }

 private:
  std::unique_ptr<Channel> below_;
  std::atomic<bool>& mute_;
};

struct Place {
  Group world;
  Watch& watch;
  std::atomic<bool>& mute;
  Pool pool{1};
  Stream s{pool};

  void all_reduce(std::string_view name, std::int64_t n = 1024) {
    const Label label(name);
    OwnedTensor x({{n}, DType::f32});
    world.all_reduce(s, x.tensor).wait();
  }
  void all_gather(std::string_view name, std::int64_t n = 16) {
    const Label label(name);
    OwnedTensor in({{n}, DType::f32}), out({{n * world.size()}, DType::f32});
    world.all_gather(s, out.tensor, in.tensor).wait();
  }
};

struct Outcome {
  std::vector<std::string> errors;  // by rank: the error of its body
  std::vector<std::string> left;    // by rank: the argument of `leave`
};

Outcome run(int n, const std::function<void(Place&)>& body, double deadline = 0.4, double leave_seconds = 5) {
  auto transports = thread_transports(n);
  auto channels = thread_channels(n, {"alpha", "beta", "gamma", "delta"});
  Outcome out{std::vector<std::string>(static_cast<std::size_t>(n)),
              std::vector<std::string>(static_cast<std::size_t>(n))};
  std::vector<std::jthread> threads;
  for (int r = 0; r < n; ++r)
    threads.emplace_back([&, r] {
      const auto i = static_cast<std::size_t>(r);
      std::atomic<bool> mute = false;
      Watch watch(std::make_unique<MuteChannel>(std::move(channels[i]), mute),
                  {.beat_seconds = 0.05,
                   .answer_seconds = 0.6,
                   .leave_seconds = leave_seconds,
                   .close_seconds = 2,
                   .leave = [&](const std::string& why) { out.left[i] = why; }});
      try {
        Place place{make_world(std::move(transports[i]), {.deadline_seconds = deadline, .on_lost = watch.on_lost()}),
                    watch, mute};
        watch.guard(place.world);
        try {
          body(place);
        } catch (...) {
          mute = false;
          throw;
        }
        mute = false;
        watch.close();
      } catch (const PeerLost& e) {
        out.errors[i] = e.what();
      } catch (const std::exception& e) {
        out.errors[i] = e.what();
        watch.fail(e.what());
      }
    });
  threads.clear();
  return out;
}

void expect_all(const Outcome& o, std::initializer_list<const char*> parts, const std::vector<int>& except = {}) {
  for (std::size_t r = 0; r < o.errors.size(); ++r) {
    if (std::find(except.begin(), except.end(), static_cast<int>(r)) != except.end()) continue;
    for (const char* part : parts)
      EXPECT_NE(o.errors[r].find(part), std::string::npos)
          << "rank " << r << ": expected \"" << part << "\" in: " << o.errors[r];
  }
}

TEST(watch, a_run_without_faults_is_left_alone) {
  const auto o = run(4, [](Place& p) {
    for (int i = 0; i < 50; ++i) p.all_reduce("x"), p.all_gather("y");
    if (p.world.rank() == 2) std::this_thread::sleep_for(300ms);  // others finish long before
    EXPECT_EQ(p.watch.verdict(), "");
  });
  for (const auto& e : o.errors) EXPECT_EQ(e, "");
}

TEST(watch, a_rank_that_is_late_is_named_with_its_phase) {
  for (const int late : {0, 1, 3}) {
    const auto o = run(4, [&](Place& p) {
      p.all_reduce("loss");
      if (p.world.rank() == late) {
        const InPhase phase(p.world.ledger(), Phase::data);
        std::this_thread::sleep_for(1200ms);
        // Messages that the others sent before they gave up may complete it: it must find a group that has been given
        // up.
        for (int i = 0; i < 2000 && p.watch.verdict().empty(); ++i) std::this_thread::sleep_for(10ms);
      }
      p.all_reduce("grad.0");
    });
    static constexpr const char* kHosts[] = {"alpha", "beta", "gamma", "delta"};
    expect_all(o, {fmt::format("rank {} on {} has been in data for", late, kHosts[late]).c_str(),
                   "all_reduce number 2 of group world, sum of 1024 F32, grad.0"});
  }
}

TEST(watch, different_shapes_are_reported) {
  const auto o = run(3, [](Place& p) {
    p.all_reduce("a");
    p.all_reduce("grad.1", p.world.rank() == 1 ? 512 : 1024);
  });
  expect_all(o, {"rank 1 on beta is in all_reduce number 2 of group world, sum of 512 F32, grad.1 while rank 0 on "
                 "alpha is in all_reduce number 2 of group world, sum of 1024 F32, grad.1"});
}

TEST(watch, a_different_order_is_reported) {
  const auto o = run(2, [](Place& p) {
    if (p.world.rank() == 0) p.all_gather("w"), p.all_reduce("g");
    else p.all_reduce("g"), p.all_gather("w");
  });
  expect_all(o, {"rank 1 on beta is in all_reduce number 1 of group world, sum of 1024 F32, g while rank 0 on alpha is "
                 "in all_gather number 1 of group world, 16 F32, w"});
}

TEST(watch, a_frozen_rank_is_named) {
  for (const int frozen : {1, 2}) {
    const auto o = run(3, [&](Place& p) {
      for (int i = 0; i < 3; ++i) p.all_reduce("x");
      if (p.world.rank() == frozen) {
        std::this_thread::sleep_for(100ms);
        p.mute = true;
        std::this_thread::sleep_for(2500ms);
      }
      p.all_reduce("grad.2");  // the others had entered it, so the frozen rank may complete it when it wakes
      p.all_reduce("grad.3");
    });
    expect_all(o,
               {fmt::format("rank {} on {} does not answer", frozen, frozen == 1 ? "beta" : "gamma").c_str(),
                "outside collectives after all_reduce number 3", "waits in all_reduce number 4"},
               {frozen});
    EXPECT_NE(o.errors[static_cast<std::size_t>(frozen)], "");
  }
}

TEST(watch, a_frozen_rank0_is_named_by_the_others) {
  const auto o = run(3, [](Place& p) {
    p.all_reduce("x");
    if (p.world.rank() == 0) {
      const InPhase loads(p.world.ledger(), Phase::data);
      std::this_thread::sleep_for(200ms);
      p.mute = true;
      std::this_thread::sleep_for(3500ms);
    }
    p.all_reduce("grad.3");
  });
  expect_all(o,
             {"rank 0 on alpha does not answer", " ago it was in data for ", "after all_reduce number 1 of group world",
              "waits in all_reduce number 2 of group world, sum of 1024 F32, grad.3"},
             {0});
}

TEST(watch, an_error_of_one_rank_is_reported_by_all_at_once) {
  for (const int bad : {0, 2}) {
    const auto begin = Clock::now();
    const auto o = run(
        3,
        [&](Place& p) {
          p.all_reduce("x");
          if (p.world.rank() == bad) fail("data", "no file tokens.bin");
          p.all_reduce("y");
        },
        300);
    EXPECT_EQ(o.errors[static_cast<std::size_t>(bad)], "[data] no file tokens.bin");
    expect_all(o, {"ended by an error of its own: [data] no file tokens.bin"}, {bad});
    EXPECT_LT(Clock::now() - begin, 200s) << "a rank waited for the deadline";
  }
}

TEST(watch, a_rank_that_finishes_early_is_named) {
  const auto o = run(3, [](Place& p) {
    for (int i = 0; i < (p.world.rank() == 1 ? 2 : 3); ++i) p.all_reduce("x");
  });
  expect_all(o, {"rank 1 on beta has finished its run; rank", "waits in all_reduce number 3"}, {1});
}

TEST(watch, a_rank_whose_main_thread_hangs_is_ended) {
  const auto o = run(
      2,
      [](Place& p) {
        if (p.world.rank() == 1) std::this_thread::sleep_for(2500ms);  // for example reading from a broken disk
        p.all_reduce("x");
      },
      0.3, 0.5);
  EXPECT_NE(o.left[1].find("rank 1 on beta has been outside collectives"), std::string::npos) << o.left[1];
}

TEST(watch, work_that_never_ends_is_asked_about_where_it_is_limited) {
  for (const bool limited : {false, true}) {
    const auto o = run(
        3,
        [&](Place& p) {
          if (limited) p.watch.limit_work(0.3);
          p.all_reduce("x");
          const InPhase phase(p.world.ledger(), p.world.rank() == 1 ? Phase::data : Phase::compute);
          std::this_thread::sleep_for(1500ms);
          EXPECT_EQ(p.watch.verdict().empty(), !limited) << p.watch.verdict();
        },
        30);
    if (limited) expect_all(o, {"rank 1 on beta has been in data for", "has been in compute for"});
  }
}

TEST(watch, groups_of_one_name_are_distinguished) {
  const auto o = run(
      4,
      [](Place& p) {
        const auto tp = p.world.split(p.world.rank() / 2, p.world.rank(), "tp");
        OwnedTensor x({{32}, DType::f32});
        tp.all_reduce(p.s, x.tensor).wait();
        if (p.world.rank() == 3) {
          const InPhase phase(p.world.ledger(), Phase::compute);
          std::this_thread::sleep_for(1200ms);
        }
        const Label label("qkv");
        for (int i = 0; i < 2; ++i) tp.all_reduce(p.s, x.tensor).wait();
      },
      0.8);  // rank 2 may wait that long for a core, and does not wait for any rank until then
  expect_all(o,
             {"rank 3 on delta has been in compute for",
              "did not come to all_reduce number 2 of group tp, sum of 32 F32, qkv", "rank 2 on gamma waits"},
             {1});  // rank 1 has completed all its work
}

}  // namespace
}  // namespace hpcdl::comm
