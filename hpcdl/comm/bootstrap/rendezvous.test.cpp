#include "hpcdl/comm/bootstrap/rendezvous.h"

#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <future>

#include "hpcdl/comm/bootstrap/ranks_for_tests.h"
#include "hpcdl/comm/bootstrap/socket.h"
#include "hpcdl/io/temp_folder.h"

namespace hpcdl::comm {
namespace {

namespace fs = std::filesystem;

Place place(int rank, int world, bool one_host = true) {
  Place p;
  p.rank = rank, p.world = world, p.local_rank = rank, p.local_world = one_host ? world : 1, p.source = "test";
  p.run_id = fmt::format("test-{}", getpid());
  return p;
}

/// With any method, all ranks meet and agree on the host of each rank.
void expect_to_meet(int world, bool one_host, const std::function<RendezvousOptions(int rank)>& options,
                    const std::function<void(Place&)>& adapt = {}) {
  expect_none(run_ranks(world, [&](int r) {
    Place p = place(r, world, one_host);
    if (adapt) adapt(p);
    const auto store = open_store(p, options(r));
    EXPECT_EQ(store->gather("who", std::to_string(r), in(20s)).back(), std::to_string(world - 1));
    EXPECT_EQ(store->hosts()[0], host_name());
    EXPECT_TRUE(store->close(in(20s)));
  }));
}

int free_port() { return port_of(listen_at("", 0)); }

TEST(rendezvous, file) {
  const io::TempFolder folder;
  for (const bool one_host : {true, false})
    expect_to_meet(3, one_host, [&](int) {
      return RendezvousOptions{.method = "file://" + (folder / "meet").string(), .timeout = 20s};
    });
  EXPECT_TRUE(fs::is_empty(folder.path()));  // nothing remains
}

TEST(rendezvous, a_stale_or_foreign_file_is_replaced) {
  const io::TempFolder folder;
  const auto stranger = listen_at("127.0.0.1", 0);  // listens, but never sends anything
  std::ofstream(folder / fmt::format("meet.test-{}", getpid()))
      << "hpcdl old\n127.0.0.1 1\n127.0.0.1 " << port_of(stranger) << "\nend\n";
  expect_none(run_ranks(2, [&](int r) {
    if (r == 0) std::this_thread::sleep_for(300ms);  // rank 1 finds the stale file
    const auto store = open_store(place(r, 2), {.method = "file://" + (folder / "meet").string(), .timeout = 30s});
    EXPECT_TRUE(store->close(in(20s)));
  }));
}

TEST(rendezvous, tcp) {
  for (const char* host : {"127.0.0.1", "localhost"}) {
    const auto method = fmt::format("tcp://{}:{}", host, free_port());
    expect_to_meet(3, false, [&](int) { return RendezvousOptions{.method = method, .timeout = 20s}; });
  }
}

TEST(rendezvous, env_goes_on_to_the_next_port_when_one_is_taken) {
  const auto taken = listen_at("", 0);
  for (const char* method : {"env", "auto"})
    expect_to_meet(
        3, false, [&](int) { return RendezvousOptions{.method = method, .timeout = 20s}; },
        [&](Place& p) { p.master_host = "127.0.0.1", p.master_port = port_of(taken), p.ports = 16; });
}

TEST(rendezvous, mpi) {
  std::promise<std::string> told;
  auto heard = told.get_future().share();
  expect_to_meet(3, false, [&](int r) {
    return RendezvousOptions{.method = "mpi", .timeout = 20s, .broadcast = [&, r](const std::string& text) {
                               if (r == 0) told.set_value(text);
                               return heard.get();
                             }};
  });
}

/// MPICH's mpirun sets none; a script around each rank has its own process number.
TEST(rendezvous, a_launch_without_a_name_meets_over_mpi) {
  std::promise<std::string> told;
  auto heard = told.get_future().share();
  expect_to_meet(
      3, true,
      [&](int r) {
        return RendezvousOptions{.timeout = 20s, .broadcast = [&, r](const std::string& text) {
                                   if (r == 0) told.set_value(text);
                                   return heard.get();
                                 }};
      },
      [](Place& p) { p.run_id.clear(); });
  EXPECT_EQ(heard.wait_for(0s), std::future_status::ready) << "the ranks met without MPI";
}

TEST(rendezvous, one_host_needs_nothing) {
  expect_to_meet(4, true, [](int) { return RendezvousOptions{.timeout = 20s}; });
  expect_to_meet(1, true, [](int) { return RendezvousOptions{.timeout = 20s}; });
}

TEST(rendezvous, a_temporary_folder_that_is_not_there_does_no_harm) {
  const char* was = std::getenv("TMPDIR");
  const std::string before = was ? was : "";
  setenv("TMPDIR", "/no/such/folder", 1);
  expect_to_meet(2, true, [](int) { return RendezvousOptions{.timeout = 20s}; });
  was ? setenv("TMPDIR", before.c_str(), 1) : unsetenv("TMPDIR");
}

TEST(rendezvous, impossible_methods_are_clear_errors) {
  const auto error = [](const Place& p, const RendezvousOptions& o) {
    try {
      open_store(p, o);
    } catch (const UsageError& e) {
      return std::string(e.what());
    }
    return std::string();
  };
  EXPECT_NE(error(place(0, 2, false), {}).find("does not say where rank 0 is"), std::string::npos);
  EXPECT_NE(error(place(0, 2), {.method = "mpi"}).find("needs a build with MPI"), std::string::npos);
  EXPECT_NE(error(place(0, 2), {.method = "carrier pigeon"}).find("carrier pigeon"), std::string::npos);
  EXPECT_NE(error(place(0, 2), {.method = "tcp://x"}), "");
  EXPECT_NE(error(place(0, 2), {.method = "tcp://x:0"}), "");
  EXPECT_NE(error(place(0, 2), {.method = "file:///no/such/folder/x"}), "");
}

TEST(rendezvous, nobody_there_names_the_address) {
  const auto errors = run_ranks(2, [&](int r) {
    if (r == 1) open_store(place(1, 2), {.method = fmt::format("tcp://127.0.0.1:{}", free_port()), .timeout = 300ms});
  });
  EXPECT_NE(errors[1].find("rank 1 on " + host_name() + " did not reach rank 0 at 127.0.0.1:"), std::string::npos)
      << errors[1];
}

/// Ends at once instead of waiting for the deadline, wherever the signal arrives.
TEST(rendezvous, a_request_to_stop_ends_all_connected_ranks) {
  for (const int asked : {0, 1}) {
    const io::TempFolder folder;
    std::atomic<bool> stop = false;
    std::vector<int> stopped(4);
    expect_none(run_ranks(4, [&](int r) {
      if (r == 2) std::this_thread::sleep_for(300ms), stop = true;
      if (r >= 2) return;  // they never arrive
      try {
        open_store(place(r, 4), {.method = "file://" + (folder / "meet").string(),
                                 .timeout = 20s,
                                 .asked_to_stop = [&, r] { return r == asked && stop; }});
      } catch (const Stopped& e) {
        stopped[static_cast<std::size_t>(r)] = 1;
        EXPECT_NE(std::string(e.what()).find(fmt::format("rank {} on", asked)), std::string::npos) << e.what();
      }
    }));
    EXPECT_EQ(stopped, (std::vector<int>{1, 1, 0, 0}));
    EXPECT_TRUE(fs::is_empty(folder.path()));
  }
}

TEST(rendezvous, a_rank_that_finds_no_other_can_be_asked_to_stop) {
  const auto begin = Clock::now();
  EXPECT_THROW(open_store(place(1, 2), {.method = fmt::format("tcp://127.0.0.1:{}", free_port()),
                                        .timeout = 20s,
                                        .asked_to_stop = [&] { return Clock::now() - begin > 300ms; }}),
               Stopped);
}

/// A rank that comes after rank 0 has left, or long before it, reports that instead of waiting silently.
TEST(rendezvous, a_rank_that_waits_says_what_for) {
  const io::TempFolder folder;
  const auto file = "file://" + (folder / "meet").string();
  EXPECT_THROW(open_store(place(0, 2), {.method = file, .timeout = 20s, .asked_to_stop = [] { return true; }}),
               Stopped);
  std::vector<std::string> said;
  EXPECT_THROW(open_store(place(1, 2), {.method = file,
                                        .timeout = 800ms,
                                        .say = [&](const std::string& sentence) { said.push_back(sentence); },
                                        .silent = 200ms}),
               PeerLost);
  ASSERT_EQ(said.size(), 1u);
  EXPECT_EQ(said[0].find(fmt::format("rank 1 on {} waits for rank 0 at {}", host_name(), (folder / "meet").string())),
            0u)
      << said[0];
  EXPECT_NE(said[0].find("has not started yet, or has already ended"), std::string::npos) << said[0];
}

TEST(rendezvous, local_ranks_from_host_names) {
  expect_none(run_ranks(3, [&](int r) {
    Place p = place(r, 3);
    const auto store = open_store(p, {.timeout = 20s});
    p.local_rank = -1, p.local_world = 0;
    p = with_local_rank(p, *store);
    EXPECT_EQ(p.local_rank, r);
    EXPECT_EQ(p.local_world, 3);
    EXPECT_TRUE(store->close(in(20s)));
  }));
}

}  // namespace
}  // namespace hpcdl::comm
