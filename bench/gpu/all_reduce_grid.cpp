// All-reduces between the GPUs of this machine, one process each: NCCL and our kernels in every shape, captured in one
// graph each and launched in turns. hpcdl/comm/algo/policy.cpp is based on its table.
//   all_reduce_grid RANKS [MAX_BYTES] > lines of JSON

#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <thread>
#include <vector>

#include "hpcdl/comm/nccl/cuda_group.h"
#include "hpcdl/core/cuda_runtime.h"

namespace {

using namespace hpcdl;
using namespace hpcdl::comm;

constexpr int kReplays = 30;

/// Memory that the processes share: a barrier and room for messages.
struct Table {
  std::atomic<int> arrived, round, failed;
  std::byte room[64][16384];
};

void meet(Table& t, int ranks) {
  const int round = t.round.load();
  if (t.arrived.fetch_add(1) + 1 == ranks) {
    t.arrived = 0;
    t.round = round + 1;
    return;
  }
  while (t.round.load() == round) {
    if (t.failed.load()) throw PeerLost("[grid] another rank has failed");
    std::this_thread::yield();
  }
}

HostExchange exchange_over(Table& t, int rank, int ranks) {
  return {.rank = rank,
          .size = ranks,
          .name = "grid",
          .timeout = 30,
          .all_gather = [&t, rank, ranks](std::span<const std::byte> mine, std::span<std::byte> all) {
            require(mine.size() <= sizeof t.room[0], "grid", "{} bytes are too many", mine.size());
            std::memcpy(t.room[rank], mine.data(), mine.size());
            meet(t, ranks);
            for (int r = 0; r < ranks; ++r)
              std::memcpy(all.data() + static_cast<std::size_t>(r) * mine.size(), t.room[r], mine.size());
            meet(t, ranks);
          }};
}

struct Variant {
  std::string name;
  std::function<void(const Stream&, const Tensor&)> queue;
  Capture graph = {};
  std::vector<double> us = {};
};

/// Microseconds of one all-reduce, of the slowest rank, in each of the replays.
void measure(std::vector<Variant>& variants, const Stream& s, const Tensor& x, int in_graph, const HostExchange& host) {
  for (auto& v : variants) {
    v.queue(s, x);  // not captured, to load what is loaded lazily
    s.synchronize();
    Capture::begin(s);
    for (int i = 0; i < in_graph; ++i) v.queue(s, x);
    v.graph = Capture::end(s);
  }
  cudaEvent_t begin, end;
  cuda::check(cudaEventCreate(&begin), "cudaEventCreate"), cuda::check(cudaEventCreate(&end), "cudaEventCreate");
  for (int replay = 0; replay < kReplays; ++replay)
    for (auto& v : variants) {
      std::vector<double> all(static_cast<std::size_t>(host.size));
      double mine = 0;
      host.all_gather(std::as_bytes(std::span(&mine, 1)),
                      std::as_writable_bytes(std::span(all)));  // they start together
      cudaEventRecord(begin, cuda::queue(s));
      v.graph.launch(s);
      cudaEventRecord(end, cuda::queue(s));
      s.synchronize();
      float ms = 0;
      cuda::check(cudaEventElapsedTime(&ms, begin, end), "cudaEventElapsedTime");
      mine = static_cast<double>(ms) * 1e3 / in_graph;
      host.all_gather(std::as_bytes(std::span(&mine, 1)), std::as_writable_bytes(std::span(all)));
      if (replay >= 3) v.us.push_back(*std::max_element(all.begin(), all.end()));
    }
  cudaEventDestroy(begin), cudaEventDestroy(end);
}

double median(std::vector<double> v) {
  std::nth_element(v.begin(), v.begin() + std::ssize(v) / 2, v.end());
  return v[v.size() / 2];
}

/// Every rank gives its number + 1 times the index: the sum is known.
void check(const Stream& s, CudaGroup& group, const HostExchange& host) {
  const std::int64_t n = 5001;
  OwnedTensor on_host({{n}, DType::f32}), x({{n}, DType::f32}, s.device());
  for (const auto a : {Algorithm::native, Algorithm::shared}) {
    for (std::int64_t i = 0; i < n; ++i)
      on_host.tensor.ptr<float>()[i] = static_cast<float>((host.rank + 1) * (i % 100));
    copy(s, x.tensor, on_host.tensor);
    group.all_reduce(s, x.tensor, Reduce::sum, a, false);
    copy(s, on_host.tensor, x.tensor);
    for (std::int64_t i = 0; i < n; ++i) {
      const float want = static_cast<float>(host.size * (host.size + 1) / 2 * (i % 100));
      require(on_host.tensor.ptr<float>()[i] == want, "grid", "{}: element {} is {}, expected {}", algorithm_name(a), i,
              on_host.tensor.ptr<float>()[i], want);
    }
  }
}

void run(const HostExchange& host, std::int64_t max_bytes) {
  const auto device = Device::cuda(host.rank);
  Pool pool(1);
  const Stream s(device, pool);
  CudaGroup group(host, device);
  const auto* peers = group.peers();
  require(peers != nullptr, "grid", "these GPUs cannot write each other's memory");
  if (host.rank == 0)
    std::fprintf(stderr, "%d ranks, %s, NVLink %d\n", host.size, nccl::describe(nccl::Library::get()).c_str(),
                 peers->nvlink());
  check(s, group, host);
  for (std::int64_t bytes = 4; bytes <= max_bytes; bytes *= bytes < 1024 ? 16 : 2) {
    OwnedTensor x({{bytes / 2}, DType::bf16}, device);
    OwnedTensor ones({{bytes / 2}, DType::bf16});
    for (std::int64_t i = 0; i < bytes / 2; ++i) ones.tensor.ptr<bf16>()[i] = bf16(0.01f * static_cast<float>(i % 251));
    copy(s, x.tensor, ones.tensor);
    std::vector<Variant> variants;
    variants.push_back({"nccl", [&](const Stream& q, const Tensor& t) {
                          group.all_reduce(q, t, Reduce::avg, Algorithm::native, false);
                        }});
    variants.push_back({"auto", [&](const Stream& q, const Tensor& t) {
                          group.all_reduce(q, t, Reduce::avg, Algorithm::automatic, false);
                        }});
    if (bytes <= PeerBlocks::kTwoShot)
      for (const int trips : {1, 2})
        for (const int blocks : {1, 2, 4, 8, 16, 32, 64}) {
          if (trips == 1 && (bytes > PeerBlocks::kOneShot || blocks * 4096 > std::max<std::int64_t>(2 * bytes, 4096) ||
                             bytes > blocks * (64 << 10)))
            continue;
          if (trips == 2 && (bytes < 16384 || blocks * 8192 > 2 * bytes || bytes > blocks * (1 << 20))) continue;
          variants.push_back(
              {fmt::format("{}x{}", trips, blocks), [&, trips, blocks](const Stream& q, const Tensor& t) {
                 peers->all_reduce(q, t, Reduce::avg, {blocks, trips});
               }});
        }
    measure(variants, s, x.tensor, bytes <= (1 << 20) ? 20 : 4, host);
    if (host.rank != 0) continue;
    nlohmann::ordered_json line{{"ranks", host.size}, {"bytes", bytes}};
    for (const auto& v : variants) line[v.name] = std::stod(fmt::format("{:.2f}", median(v.us)));
    std::puts(line.dump().c_str()), std::fflush(stdout);
  }
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 2) return std::fprintf(stderr, "usage: all_reduce_grid RANKS [MAX_BYTES]\n"), 2;
  const int ranks = std::atoi(argv[1]);
  const std::int64_t max_bytes = argc > 2 ? std::atoll(argv[2]) : std::int64_t{64} << 20;
  auto* table =
      static_cast<Table*>(mmap(nullptr, sizeof(Table), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0));
  if (table == MAP_FAILED || ranks < 2 || ranks > 64) return 2;
  int failed = 0;
  for (int r = 0; r < ranks; ++r)
    if (fork() == 0) {
      try {
        run(exchange_over(*table, r, ranks), max_bytes);
      } catch (const std::exception& e) {
        table->failed = 1;
        std::fprintf(stderr, "rank %d: %s\n", r, e.what());
        return 1;
      }
      return 0;
    }
  for (int r = 0, status = 0; r < ranks; ++r) failed += wait(&status) < 0 || status != 0;
  return failed != 0;
}
