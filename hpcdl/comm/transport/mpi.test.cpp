// The same exercise as on threads, on ranks that mpirun starts: this program starts itself again with it.

#include "hpcdl/comm/transport/mpi.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "hpcdl/comm/bootstrap/join.h"
#include "hpcdl/comm/world.h"
#include "hpcdl/pool.h"
#include "hpcdl/testing/exercise.h"

namespace hpcdl::comm {
namespace {

namespace fs = std::filesystem;

bool is_rank() { return std::getenv("HPCDL_TEST_MPI_RANK") != nullptr; }

/// The mpirun of the MPI that the library was linked to.
std::string launcher() {
  const char* chosen = std::getenv("HPCDL_MPIRUN");
  return chosen != nullptr ? chosen : "mpirun";
}

struct Ran {
  int status;
  std::string output;
};

Ran mpirun(int n, const std::string& filter) {
  const std::string self = fs::read_symlink("/proc/self/exe").string();
  const fs::path log = fs::temp_directory_path() / fmt::format("hpcdl_mpi_test_{}.log", getpid());
  const std::string command = fmt::format(
      "OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMPI_MCA_rmaps_base_oversubscribe=1 "
      "HPCDL_TEST_MPI_RANK=1 timeout 120 '{}' -n {} '{}' --gtest_filter='{}' > '{}' 2>&1",
      launcher(), n, self, filter, log.string());
  Ran ran{std::system(command.c_str()), {}};
  std::ifstream in(log);
  ran.output.assign(std::istreambuf_iterator<char>(in), {});
  fs::remove(log);
  return ran;
}

#define NEEDS_MPI()                                                                                   \
  if (is_rank()) return;                                                                              \
  if (!has_mpi() || std::system(fmt::format("command -v '{}' > /dev/null", launcher()).c_str()) != 0) \
  GTEST_SKIP() << "no MPI in this build, or no mpirun on this machine"

TEST(mpi, collectives_over_split_groups) {
  NEEDS_MPI();
  for (const int n : {1, 2, 3, 4}) {
    const Ran ran = mpirun(n, "mpi_rank.exercise");
    EXPECT_EQ(ran.status, 0) << n << " ranks\n" << ran.output;
  }
}

TEST(mpi, native_equals_ours) {
  NEEDS_MPI();
  const Ran ran = mpirun(3, "mpi_rank.native");
  EXPECT_EQ(ran.status, 0) << ran.output;
}

TEST(mpi, a_rank_that_does_not_come_is_named_and_nothing_hangs) {
  NEEDS_MPI();
  // A rank that has lost a peer waits for it in MPI_Finalize() only for some seconds, and mpirun ends the other one.
  const Ran ran = mpirun(2, "mpi_rank.late");
  EXPECT_EQ(WEXITSTATUS(ran.status), exit_code::kPeerLost) << ran.output;
  EXPECT_NE(ran.output.find("all_reduce number 1 of group world"), std::string::npos) << ran.output;
}

TEST(mpi, a_native_collective_that_hangs_has_a_deadline) {
  NEEDS_MPI();
  const Ran ran = mpirun(2, "mpi_rank.native_late");
  EXPECT_EQ(WEXITSTATUS(ran.status), exit_code::kPeerLost) << ran.output;
  EXPECT_NE(ran.output.find("did not come to all_reduce number 1 of group world, sum of 4 F32"), std::string::npos)
      << ran.output;
}

TEST(mpi, the_library_of_the_build_is_named) {
  if (!has_mpi()) GTEST_SKIP() << "no MPI in this build";
  const std::string name = mpi_library();
  EXPECT_NE(name.find("MPI"), std::string::npos) << name;
  EXPECT_NE(name.find('.'), std::string::npos) << name << " has a version";
}

TEST(mpi_rank, exercise) {
  if (!is_rank()) GTEST_SKIP() << "must be started by mpirun";
  Group world = make_world(mpi_transport(), {.deadline_seconds = 60, .on_lost = {}});
  EXPECT_EQ(world.transport(), "mpi");
  if (world.size() > 1) {
    ASSERT_TRUE(world.share(100)) << "ranks of one host share memory";
  }
  testing::exercise(world, 11, 200);
  world.close();
}

TEST(mpi_rank, native) {
  if (!is_rank()) GTEST_SKIP() << "must be started by mpirun";
  Group world = make_world(mpi_transport(), {.deadline_seconds = 60, .on_lost = {}});
  Pool pool(1);
  const Stream s(pool);
  const int n = world.size();
  std::vector<float> x(1000, static_cast<float>(world.rank() + 1)), parts(static_cast<std::size_t>(n) * 10, 1.5f),
      part(10);
  const auto tensor = [](std::vector<float>& v) {
    return Tensor(v.data(), Spec{Shape{static_cast<std::int64_t>(v.size())}, DType::f32});
  };
  world.all_reduce(s, tensor(x), Reduce::avg, Algorithm::native).wait();
  EXPECT_EQ(x[999], static_cast<float>(n + 1) / 2);
  world.reduce_scatter(s, tensor(part), tensor(parts), Reduce::sum, Algorithm::native).wait();
  EXPECT_EQ(part[9], 1.5f * static_cast<float>(n));
  part.assign(10, static_cast<float>(world.rank()));
  world.all_gather(s, tensor(parts), tensor(part), Algorithm::native).wait();
  for (int r = 0; r < n; ++r) EXPECT_EQ(parts[static_cast<std::size_t>(r * 10 + 9)], static_cast<float>(r));
  std::vector<bf16> b(4);
  EXPECT_THROW(
      world.all_reduce(s, Tensor(b.data(), Spec{Shape{4}, DType::bf16}), Reduce::sum, Algorithm::native).wait(), Error);
  world.close();
}

TEST(mpi_rank, late) {
  if (!is_rank()) GTEST_SKIP() << "must be started by mpirun";
  std::string lost;
  {
    Group world = make_world(mpi_transport(), {.deadline_seconds = 1, .on_lost = {}});
    Pool pool(1);
    if (world.rank() == 1) {
      sleep(10);
      FAIL() << "mpirun did not end this rank";
    }
    std::vector<float> x(100000);
    try {
      world.all_reduce(Stream(pool), Tensor(x.data(), Spec{Shape{100000}, DType::f32})).wait();
      FAIL() << "expected an error: the peer never answers";
    } catch (const PeerLost& e) {
      lost = e.what();
    }
  }
  std::fprintf(stderr, "%s\n", lost.c_str());
  std::exit(exit_code::kPeerLost);  // as programs do; ending MPI is part of what must not hang
}

TEST(mpi_rank, native_late) {
  if (!is_rank()) GTEST_SKIP() << "must be started by mpirun";
  auto joined = join(find_place(process_environment()),
                     {.transport = "mpi", .timeout = 1, .leave = [](const std::string& sentence) {
                        std::fprintf(stderr, "%s\n", sentence.c_str());
                        _exit(exit_code::kPeerLost);
                      }});
  Pool pool(1);
  if (joined.place().rank == 1) {
    sleep(60);
    FAIL() << "its watchdog did not end this rank";
  }
  std::vector<float> x(4);
  joined.world()
      .all_reduce(Stream(pool), Tensor(x.data(), Spec{Shape{4}, DType::f32}), Reduce::sum, Algorithm::native)
      .wait();
  FAIL() << "expected an error: the peer never answers";
}

}  // namespace
}  // namespace hpcdl::comm
