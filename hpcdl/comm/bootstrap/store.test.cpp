#include "hpcdl/comm/bootstrap/store.h"

#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <condition_variable>
#include <mutex>

#include "hpcdl/comm/bootstrap/ranks_for_tests.h"
#include "hpcdl/comm/bootstrap/store_server.h"

namespace hpcdl::comm {
namespace {

/// Waits for what handlers report.
struct Heard {
  std::mutex mutex;
  std::condition_variable changed;
  std::vector<std::string> lines;

  void add(std::string line) {
    const std::lock_guard lock(mutex);
    lines.push_back(std::move(line));
    changed.notify_all();
  }
  bool wait(std::size_t n) {
    std::unique_lock lock(mutex);
    return changed.wait_for(lock, 20s, [&] { return lines.size() >= n; });
  }
  bool has(std::string_view line) {
    const std::lock_guard lock(mutex);
    return std::find(lines.begin(), lines.end(), line) != lines.end();
  }
  void listen_to(Store& store) {
    store.listen([this](int from, std::string_view text) { add(fmt::format("{}: {}", from, text)); },
                 [this](int rank, const std::string&) { add(fmt::format("lost {}", rank)); });
  }
};

TEST(store, more_ranks_than_the_soft_limit_of_open_files_raise_it) {
  rlimit before{};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &before), 0);
  const rlimit low{std::min<rlim_t>(before.rlim_max, 200), before.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &low), 0);
  if (before.rlim_max >= 3 + 256) {
    StoreServer server(listen_at("127.0.0.1", 0), {3, {}, in(20s), {}});
    rlimit raised{};
    getrlimit(RLIMIT_NOFILE, &raised);
    EXPECT_EQ(raised.rlim_cur, 3u + 256u);
  }
  const int child = fork();
  if (child == 0) {
    const rlimit hard{200, 200};
    setrlimit(RLIMIT_NOFILE, &hard);
    try {
      const StoreServer server(listen_at("127.0.0.1", 0), {3, {}, in(20s), {}});
    } catch (const Error& e) {
      _exit(std::string(e.what()).find("needs up to 259 open files for 3 ranks, but at most 200") == std::string::npos);
    }
    _exit(2);
  }
  int status = 0;
  waitpid(child, &status, 0);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0);
  setrlimit(RLIMIT_NOFILE, &before);
}

TEST(store, values_counters_and_rounds_for_every_size) {
  for (const int world : {1, 2, 3, 4, 7, 9}) {
    Launch launch(world);
    expect_none(run_ranks(world, [&](int r) {
      const auto store = launch.join(r);
      EXPECT_EQ(store->rank(), r);
      EXPECT_EQ(store->world(), world);
      if (r == world - 1) store->set("id", std::string("a\0b", 3));
      EXPECT_EQ(store->get("id", in(20s)), std::string("a\0b", 3));
      store->add("n", r + 1, in(20s));
      for (int round = 0; round < 20; ++round) {
        const auto all = store->gather("round", std::to_string(100 * round + r), in(20s));
        ASSERT_EQ(static_cast<int>(all.size()), world);
        for (int i = 0; i < world; ++i) EXPECT_EQ(all[static_cast<std::size_t>(i)], std::to_string(100 * round + i));
        EXPECT_EQ(store->collect("to 0", all[static_cast<std::size_t>(r)], in(20s)),
                  r == 0 ? all : std::vector<std::string>());
        EXPECT_EQ(store->scatter("from 0", r == 0 ? all : std::vector<std::string>(), in(20s)),
                  std::to_string(100 * round + r));
      }
      EXPECT_EQ(store->add("n", 0, in(20s)), world * (world + 1) / 2);
      EXPECT_EQ(store->get("n", in(20s)), std::to_string(world * (world + 1) / 2));
      store->wait({"id", "n"}, in(20s));
      EXPECT_TRUE(store->close(in(20s)));
    }));
  }
}

TEST(store, large_values_pass) {
  Launch launch(3);
  const std::string large(3'000'001, 'x');
  expect_none(run_ranks(3, [&](int r) {
    const auto store = launch.join(r);
    if (r == 1) store->set("large", large);
    EXPECT_EQ(store->get("large", in(20s)), large);
    const auto all = store->gather("all", large, in(20s));
    EXPECT_EQ(all[2], large);
    EXPECT_THROW(store->set("too large", std::string((64 << 20) + 1, 'x')), Error);
    EXPECT_TRUE(store->close(in(20s)));
  }));
}

TEST(store, ranks_that_do_not_come_are_named_to_all_that_came) {
  Launch launch(4, 500ms);
  const auto errors = run_ranks(4, [&](int r) {
    if (r != 2) launch.join(r);
  });
  for (const int r : {0, 1, 3}) {
    const auto& e = errors[static_cast<std::size_t>(r)];
    EXPECT_NE(e.find("1 of 4 ranks did not come in time: 2 on c;"), std::string::npos) << e;
    EXPECT_NE(e.find("here: 0 on "), std::string::npos) << e;
  }
}

TEST(store, a_late_rank_is_named) {
  Launch launch(3);
  std::array<decltype(launch.join(0)), 3> stores;  // does not leave before the others' timeouts end
  const auto errors = run_ranks(3, [&](int r) {
    auto& store = stores[static_cast<std::size_t>(r)];
    store = launch.join(r);
    if (r != 1) store->barrier("before the step", in(300ms));
    else std::this_thread::sleep_for(1500ms);
  });
  for (const int r : {0, 2})
    EXPECT_NE(errors[static_cast<std::size_t>(r)].find("\"before the step\" waits for rank 1 on "), std::string::npos)
        << errors[static_cast<std::size_t>(r)];
}

TEST(store, a_key_that_is_never_set_is_named) {
  Launch launch(2);
  expect_none(run_ranks(2, [&](int r) {
    const auto store = launch.join(r);
    if (r == 1) {
      try {
        store->get("nccl id", in(100ms));
        ADD_FAILURE();
      } catch (const PeerLost& e) {
        EXPECT_NE(std::string(e.what()).find("no rank has set \"nccl id\""), std::string::npos) << e.what();
      }
    }
    store->close(in(20s));
  }));
}

TEST(store, a_rank_that_goes_ends_the_others_waits_and_is_reported) {
  Launch launch(3);
  expect_none(run_ranks(3, [&](int r) {
    auto store = launch.join(r);
    store->barrier("start", in(20s));
    if (r == 1) return;  // without saying goodbye
    Heard heard;
    heard.listen_to(*store);
    try {
      store->barrier("step", in(60s));
      ADD_FAILURE();
    } catch (const PeerLost& e) {
      EXPECT_NE(std::string(e.what()).find("rank 1 on "), std::string::npos) << e.what();
      EXPECT_NE(std::string(e.what()).find("(lost)"), std::string::npos) << e.what();
    }
    EXPECT_TRUE(heard.wait(1));
    EXPECT_TRUE(heard.has("lost 1"));
    store->listen({}, {});
    store->close(in(20s));
  }));
}

TEST(store, rank_0_gone_is_reported_to_all) {
  Launch launch(3);
  expect_none(run_ranks(3, [&](int r) {
    auto store = launch.join(r);
    store->barrier("start", in(20s));
    if (r == 0) return;
    Heard heard;
    EXPECT_THROW(store->get("x", in(60s)), PeerLost);
    heard.listen_to(*store);  // earlier losses are reported
    EXPECT_TRUE(heard.wait(1));
    EXPECT_TRUE(heard.has("lost 0"));
    store->listen({}, {});
  }));
}

TEST(store, a_goodbye_is_no_loss) {
  Launch launch(3);
  expect_none(run_ranks(3, [&](int r) {
    auto store = launch.join(r);
    Heard heard;
    heard.listen_to(*store);
    store->barrier("start", in(20s));
    if (r == 2) {
      EXPECT_TRUE(store->close(in(20s)));
      return;
    }
    if (r == 0) store->send(1, "go on");
    else EXPECT_TRUE(heard.wait(1));
    store->listen({}, {});
    for (const auto& line : heard.lines) EXPECT_EQ(line, "0: go on");
    EXPECT_TRUE(store->close(in(20s)));
  }));
}

TEST(store, messages_arrive_in_order_in_both_directions) {
  constexpr int kWorld = 4, kMessages = 500;
  Launch launch(kWorld);
  expect_none(run_ranks(kWorld, [&](int r) {
    auto store = launch.join(r);
    Heard heard;
    heard.listen_to(*store);
    for (int i = 0; i < kMessages; ++i) {
      if (r == 0) store->send(-1, std::to_string(i));
      else store->send(0, std::to_string(i));
    }
    ASSERT_TRUE(heard.wait(static_cast<std::size_t>(r == 0 ? (kWorld - 1) * kMessages : kMessages)));
    std::vector<int> next(kWorld, 0);
    for (const auto& line : heard.lines) {
      const int from = line[0] - '0';
      EXPECT_EQ(line, fmt::format("{}: {}", from, next[static_cast<std::size_t>(from)]++));
    }
    store->barrier("end", in(20s));
    store->listen({}, {});
    EXPECT_TRUE(store->close(in(20s)));
  }));
}

TEST(store, launches_that_do_not_fit_together_say_why) {
  {
    Launch launch(2);
    const auto errors = run_ranks(2, [&](int r) { launch.join(r, r == 1 ? 3 : 2); });
    for (const auto& e : errors) EXPECT_NE(e.find("world of 3, rank 0 in a world of 2"), std::string::npos) << e;
  }
  {
    Launch launch(3);
    const auto errors = run_ranks(3, [&](int r) { launch.join(r == 2 ? 1 : r); });
    for (const auto& e : errors) EXPECT_NE(e.find("rank 1 came twice"), std::string::npos) << e;
  }
  {
    Launch launch(2);
    expect_none(run_ranks(3, [&](int r) {
      const auto store = launch.join(std::min(r, 1), 0, r == 2 ? "another launch" : "test");
      EXPECT_EQ(store == nullptr, r == 2);
      if (store) store->close(in(20s));
    }));
  }
}

/// As if rank 0 was too busy to answer in time: only the message of the first attempt remains.
TEST(store, a_rank_may_have_come_and_gone_before) {
  Launch launch(2);
  {
    std::string why;
    Caller early(connect_to("127.0.0.1", launch.port, 2s, why), "test", {1, 2, "b"}, "rank 0");
    EXPECT_EQ(early.advance(), Caller::State::under_way);
  }
  expect_none(run_ranks(2, [&](int r) {
    if (r == 0) std::this_thread::sleep_for(300ms);  // both wait to be accepted
    const auto store = launch.join(r);
    ASSERT_TRUE(store);
    store->barrier("start", in(20s));
    EXPECT_TRUE(store->close(in(20s)));
  }));
}

/// A rank that has connected again is not reported as lost.
TEST(store, a_rank_may_come_again) {
  Launch launch(3);
  std::atomic<bool> came = false;
  expect_none(run_ranks(3, [&](int r) {
    if (r == 1) {
      std::string why;
      Caller early(connect_to("127.0.0.1", launch.port, 2s, why), "test", {1, 3, "b"}, "rank 0");
      while (early.advance() == Caller::State::under_way)
        ASSERT_TRUE(wait_for(early.connection().socket(), false, in(20s)));
      EXPECT_EQ(early.state(), Caller::State::accepted);
    }
    if (r == 1) std::this_thread::sleep_for(300ms), came = true;
    while (r == 2 && !came) std::this_thread::sleep_for(10ms);
    const auto store = launch.join(r);
    ASSERT_TRUE(store);
    try {
      store->get("x", in(100ms));
      ADD_FAILURE();
    } catch (const PeerLost& e) {
      EXPECT_EQ(std::string(e.what()).find("lost"), std::string::npos) << e.what();
    }
    store->barrier("end", in(20s));
    EXPECT_TRUE(store->close(in(20s)));
  }));
}

TEST(store, strangers_do_not_disturb) {
  Launch launch(2);
  expect_none(run_ranks(2, [&](int r) {
    std::string why;
    std::vector<Socket> strangers;
    const auto store = [&] {
      if (r == 1) {
        for (const std::string& text : {std::string("GET / HTTP/1.0\r\n\r\n"), std::string(100, '\xff'), std::string(),
                                        std::string("\x04\0\0\0\0\0\0\0\0\0\0\0zzzz", 16)}) {
          strangers.push_back(connect_to("127.0.0.1", launch.port, 2s, why));
          std::size_t sent = 0;
          if (strangers.back()) send_some(strangers.back(), std::as_bytes(std::span(text)), sent);
        }
      }
      return launch.join(r);
    }();
    store->barrier("start", in(20s));
    EXPECT_TRUE(store->close(in(20s)));
  }));
}

TEST(store, calls_from_several_threads) {
  Launch launch(2);
  expect_none(run_ranks(2, [&](int r) {
    const auto store = launch.join(r);
    expect_none(run_ranks(4, [&](int t) {
      for (int i = 0; i < 50; ++i) {
        store->add("sum", 1, in(20s));
        store->gather(fmt::format("thread {}", t), "", in(20s));
      }
    }));
    store->barrier("end", in(20s));
    EXPECT_EQ(store->add("sum", 0, in(20s)), 2 * 4 * 50);
    store->barrier("checked", in(20s));
    EXPECT_TRUE(store->close(in(20s)));
  }));
}

}  // namespace
}  // namespace hpcdl::comm
