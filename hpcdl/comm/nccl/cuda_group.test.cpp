// Ranks that are threads, each with its own GPU. On one GPU only the refusals are tested; the other tests are skipped
// with a message.

#include <gtest/gtest.h>

#if HPCDL_NCCL

#include <algorithm>
#include <cmath>
#include <thread>

#include "hpcdl/comm/nccl/cuda_group.h"
#include "hpcdl/rng.h"
#include "hpcdl/testing/ranks.h"

namespace hpcdl::comm {
namespace {

#define NEEDS_GPUS(n) \
  if (cuda_devices() < (n)) GTEST_SKIP() << "SKIPPED: needs " << (n) << " GPUs, this process sees " << cuda_devices()

/// This rank's GPU with a stream, and values on it.
struct Rank {
  explicit Rank(const Group& world) : device(Device::cuda(world.rank())), stream(device, pool) {}
  Tensor upload(const std::vector<float>& values, DType d) {
    const Spec spec{{std::ssize(values)}, d};
    auto& on_host = hosts.emplace_back(spec);
    for (std::size_t i = 0; i < values.size(); ++i) put(on_host.tensor, i, values[i]);
    auto& on_gpu = gpus.emplace_back(spec, device);
    copy(stream, on_gpu.tensor, on_host.tensor);
    stream.synchronize();
    return on_gpu.tensor;
  }
  std::vector<float> download(const View& v) const {
    OwnedTensor host(v.spec());
    copy(stream, host.tensor, v);
    std::vector<float> values(static_cast<std::size_t>(v.size()));
    for (std::size_t i = 0; i < values.size(); ++i) values[i] = get(host.tensor, i);
    return values;
  }
  static void put(const Tensor& t, std::size_t i, float x) {
    if (t.dtype() == DType::f32) t.ptr<float>()[i] = x;
    else if (t.dtype() == DType::bf16) t.ptr<bf16>()[i] = bf16(x);
    else if (t.dtype() == DType::f16) t.ptr<f16>()[i] = f16(x);
    else t.ptr<std::int32_t>()[i] = static_cast<std::int32_t>(x);
  }
  static float get(const View& t, std::size_t i) {
    if (t.dtype() == DType::f32) return t.ptr<float>()[i];
    if (t.dtype() == DType::bf16) return t.ptr<bf16>()[i];
    if (t.dtype() == DType::f16) return t.ptr<f16>()[i];
    return static_cast<float>(t.ptr<std::int32_t>()[i]);
  }

  Pool pool{1};
  Device device;
  Stream stream;
  std::vector<OwnedTensor> hosts, gpus;
};

/// Integers up to 64: their sums over 8 ranks are exact in every type except bf16, whose sums are rounded once.
std::vector<float> values_of(int rank, std::int64_t n, std::uint64_t seed) {
  std::vector<float> v(static_cast<std::size_t>(n));
  for (std::size_t i = 0; i < v.size(); ++i)
    v[i] = static_cast<float>(Rng{seed, static_cast<std::uint64_t>(rank)}.below(i, 129)) - 64.0f;
  return v;
}

std::vector<float> expected_of(int ranks, std::int64_t n, std::uint64_t seed, Reduce op, DType d) {
  auto acc = values_of(0, n, seed);
  for (int r = 1; r < ranks; ++r) {
    const auto v = values_of(r, n, seed);
    for (std::size_t i = 0; i < v.size(); ++i) acc[i] = op == Reduce::max ? std::max(acc[i], v[i]) : acc[i] + v[i];
  }
  for (auto& a : acc) {
    if (op == Reduce::avg) a /= static_cast<float>(ranks);
    if (d == DType::bf16) a = bf16(a);
    if (d == DType::f16) a = f16(a);
  }
  return acc;
}

/// NCCL may round intermediate sums, and divides first.
void expect_close(const std::vector<float>& got, const std::vector<float>& want, DType d, bool exact) {
  ASSERT_EQ(got.size(), want.size());
  const float step = exact ? 0.0f : d == DType::bf16 ? 0x1p-6f : d == DType::f16 ? 0x1p-9f : 0x1p-21f;
  for (std::size_t i = 0; i < got.size(); ++i)
    ASSERT_LE(std::abs(got[i] - want[i]), step * 256.0f)
        << "element " << i << ": " << got[i] << ", expected " << want[i];
}

const std::vector<std::int64_t> kSizes = {0, 1, 3, 7, 64, 1023, 4096, 65536 + 5, 300000};

class CudaRanks : public ::testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(, CudaRanks, ::testing::Values(2, 3, 4, 8));

TEST_P(CudaRanks, gpu_all_reduce_of_every_type_and_size) {
  NEEDS_GPUS(GetParam());
  hpcdl::testing::run_ranks(GetParam(), [](const Group& world) {
    Rank rank(world);
    for (const auto d : {DType::f32, DType::bf16, DType::f16, DType::i32})
      for (const auto op : {Reduce::sum, Reduce::max, Reduce::avg})
        for (const auto a : {Algorithm::native, Algorithm::shared, Algorithm::automatic})
          for (const auto n : kSizes) {
            if (d == DType::i32 && op == Reduce::avg) continue;
            const auto seed = static_cast<std::uint64_t>(n) * 8 + static_cast<std::uint64_t>(op);
            const Tensor x = rank.upload(values_of(world.rank(), n, seed), d);
            world.all_reduce(rank.stream, x, op, a).wait();
            expect_close(rank.download(x), expected_of(world.size(), n, seed, op, d), d, a == Algorithm::shared);
            ASSERT_FALSE(::testing::Test::HasFatalFailure())
                << world.size() << " ranks, " << dtype_name(d) << ", " << reduce_name(op) << ", " << algorithm_name(a)
                << ", " << n;
            rank.gpus.clear(), rank.hosts.clear();
          }
  });
}

TEST_P(CudaRanks, gpu_kernels_over_peers_in_every_shape) {
  NEEDS_GPUS(GetParam());
  hpcdl::testing::run_ranks(GetParam(), [](const Group& world) {
    Rank rank(world);
    world.connect(rank.device);
    const auto* peers = dynamic_cast<const CudaGroup&>(*world.device_group()).peers();
    ASSERT_NE(peers, nullptr);
    for (int round = 0; round < 3;
         ++round)  // consecutive messages of every size: nothing may be overwritten while it is still read
      for (const int trips : {1, 2})
        for (const int blocks : {1, 3, 64})
          for (const std::int64_t n : {1, 3, 17, 1000, 65536, 9999}) {
            const Tensor x = rank.upload(values_of(world.rank(), n, static_cast<std::uint64_t>(n)), DType::f32);
            peers->all_reduce(rank.stream, x, Reduce::sum, {.blocks = blocks, .trips = trips});
            ASSERT_EQ(rank.download(x),
                      expected_of(world.size(), n, static_cast<std::uint64_t>(n), Reduce::sum, DType::f32))
                << trips << " trips, " << blocks << " blocks, " << n;
          }
  });
}

TEST_P(CudaRanks, gpu_moves_and_scatters) {
  NEEDS_GPUS(GetParam());
  hpcdl::testing::run_ranks(GetParam(), [](const Group& world) {
    Rank rank(world);
    const int n = world.size(), me = world.rank();
    for (const std::int64_t part : {0, 1, 5, 1000}) {
      const auto whole = values_of(me, n * part, 5);
      const auto cut = [&](const std::vector<float>& v, int r) {
        return std::vector<float>(v.begin() + r * part, v.begin() + (r + 1) * part);
      };
      const Tensor in = rank.upload(whole, DType::f32),
                   out = rank.upload(std::vector<float>(static_cast<std::size_t>(part), -1.0f), DType::f32);
      world.reduce_scatter(rank.stream, out, in);
      EXPECT_EQ(rank.download(out), cut(expected_of(n, n * part, 5, Reduce::sum, DType::f32), me));
      const Tensor mine = rank.upload(cut(whole, 0), DType::bf16),
                   all = rank.upload(std::vector<float>(static_cast<std::size_t>(n * part)), DType::bf16);
      world.all_gather(rank.stream, all, mine);
      const Tensor swapped = rank.upload(std::vector<float>(static_cast<std::size_t>(n * part)), DType::f32);
      world.all_to_all(rank.stream, swapped, in);
      const Tensor told = rank.upload(whole, DType::f16);
      world.broadcast(rank.stream, told, n - 1);
      EXPECT_EQ(rank.download(told), values_of(n - 1, n * part, 5));
      for (int r = 0; r < n; ++r) {
        EXPECT_EQ(cut(rank.download(all), r), cut(values_of(r, n * part, 5), 0));
        EXPECT_EQ(cut(rank.download(swapped), r), cut(values_of(r, n * part, 5), me));
      }
      const Tensor message = rank.upload(cut(whole, 0), DType::f32);
      if (me % 2 == 0 && me + 1 < n) world.send(rank.stream, message, me + 1);
      if (me % 2 == 1) {
        world.receive(rank.stream, message, me - 1);
        EXPECT_EQ(rank.download(message), cut(values_of(me - 1, n * part, 5), 0));
      }
      world.barrier(rank.stream);
      rank.stream.synchronize();
    }
  });
}

TEST_P(CudaRanks, gpu_captured_again_and_again_the_same_bits) {
  NEEDS_GPUS(GetParam());
  hpcdl::testing::run_ranks(GetParam(), [](const Group& world) {
    Rank rank(world);
    world.connect(rank.device);
    Stream beside(rank.device, rank.pool);
    const std::int64_t n = 30001;
    std::vector<float> values(static_cast<std::size_t>(n));
    for (std::size_t i = 0; i < values.size(); ++i)
      values[i] = static_cast<float>(Rng{9, static_cast<std::uint64_t>(world.rank())}.normal(i));
    const Tensor source = rank.upload(values, DType::f32), x = rank.upload(values, DType::f32),
                 y = rank.upload(values, DType::f32);
    for (const auto a : {Algorithm::native, Algorithm::shared}) {
      Capture::begin(rank.stream);
      Event fork, join;
      copy(rank.stream, x, source), copy(rank.stream, y, source);
      fork.record(rank.stream), fork.wait(beside);
      world.all_reduce(beside, x, Reduce::sum, a);  // two streams of one group: in sequence
      world.all_reduce(rank.stream, y, Reduce::sum, a);
      join.record(beside), join.wait(rank.stream);
      const auto graph = Capture::end(rank.stream);
      std::vector<float> first;
      for (int run = 0; run < 20; ++run) {
        graph.launch(rank.stream);
        const auto got = rank.download(x);
        if (run == 0) first = got;
        ASSERT_EQ(got, first);
        ASSERT_EQ(rank.download(y), first);
      }
      // The same bits on all ranks: maximum and minimum over the ranks are equal.
      auto least = first;
      for (auto& v : least) v = -v;
      const Tensor most = rank.upload(first, DType::f32), fewest = rank.upload(least, DType::f32);
      world.all_reduce(rank.stream, most, Reduce::max), world.all_reduce(rank.stream, fewest, Reduce::max);
      auto negated = rank.download(fewest);
      for (auto& v : negated) v = -v;
      EXPECT_EQ(rank.download(most), negated);
    }
  });
}

TEST_P(CudaRanks, gpu_split_groups_keep_apart) {
  NEEDS_GPUS(GetParam());
  hpcdl::testing::run_ranks(GetParam(), [](const Group& world) {
    Rank rank(world);
    const Group half = world.split(world.rank() % 2, world.rank(), "half");
    const Tensor x = rank.upload({1.0f}, DType::f32);
    half.all_reduce(rank.stream, x);
    EXPECT_EQ(rank.download(x), std::vector<float>{static_cast<float>(half.size())});
    world.all_reduce(rank.stream, x, Reduce::max);
    EXPECT_EQ(rank.download(x), std::vector<float>{static_cast<float>((world.size() + 1) / 2)});
  });
}

TEST(gpu_group, two_ranks_of_one_gpu_are_refused) {
  NEEDS_GPUS(1);
  const auto errors = hpcdl::testing::rank_errors(2, [](const Group& world) { world.connect(Device::cuda(0)); });
  for (const auto& e : errors) EXPECT_NE(e.find("ranks 0 and 1 have the same GPU"), std::string::npos) << e;
}

TEST(gpu_group, first_collective_must_not_be_captured) {
  NEEDS_GPUS(1);
  hpcdl::testing::run_ranks(2, [](const Group& world) {
    if (world.rank() == 1) return;  // it is refused before other ranks are involved, and must not set up a GPU
    Pool pool(1);
    const Stream s(Device::cuda(0), pool);
    const OwnedTensor x({{4}, DType::f32}, s.device());
    Capture::begin(s);
    try {
      world.all_reduce(s, x.tensor, Reduce::sum);
      ADD_FAILURE() << "expected an error";
    } catch (const Error& e) {
      EXPECT_NE(std::string(e.what()).find("connect() on every rank before the capture"), std::string::npos)
          << e.what();
    }
    Capture::end(s);
  });
}

TEST(gpu_group, given_up_while_a_peer_is_missing) {
  NEEDS_GPUS(2);
  hpcdl::testing::run_ranks(2, [](const Group& world) {
    Rank rank(world);
    world.connect(rank.device);
    const auto group = world.device_group();
    const Tensor x = rank.upload(std::vector<float>(100, 1.0f), DType::f32);
    if (world.rank() == 0) {
      // Rank 1 never participates: by then it has left, and this call writes to memory that was its own.
      std::this_thread::sleep_for(std::chrono::milliseconds(300));
      group->all_reduce(rank.stream, x, Reduce::sum, Algorithm::shared, false);
      group->give_up();
      rank.stream.synchronize();  // and yet the call ends
      EXPECT_THROW(synchronize(world, rank.stream), PeerLost);
      EXPECT_THROW(group->all_reduce(rank.stream, x, Reduce::sum, Algorithm::shared, false), PeerLost);
      EXPECT_THROW(group->all_reduce(rank.stream, x, Reduce::sum, Algorithm::native, false), PeerLost);
    } else {
      group->give_up();
    }
  });
}

TEST(gpu_group, deadline_of_the_device) {
  NEEDS_GPUS(2);
  for (const auto a : {Algorithm::native, Algorithm::shared}) {
    const auto errors =
        hpcdl::testing::rank_errors(2,
                                    [a](const Group& world) {
                                      Rank rank(world);
                                      world.connect(rank.device);
                                      const Tensor x = rank.upload(std::vector<float>(100, 1.0f), DType::f32);
                                      if (world.rank() == 1)
                                        return std::this_thread::sleep_for(std::chrono::seconds(8));  // rank 1 never
                                                                                                      // comes
                                      world.all_reduce(rank.stream, x, Reduce::sum, a);
                                      synchronize(world, rank.stream);
                                    },
                                    {.deadline_seconds = 4, .hosts = {}, .on_lost = {}});
    EXPECT_NE(errors[0].find("rank 0 of group world: its GPU has not finished what was queued within 4 s"),
              std::string::npos)
        << errors[0];
  }
}

}  // namespace
}  // namespace hpcdl::comm

#else

TEST(gpu_group, needs_nccl) { GTEST_SKIP() << "SKIPPED: this build has no NCCL (--preset cuda, where nccl.h is)"; }

#endif
