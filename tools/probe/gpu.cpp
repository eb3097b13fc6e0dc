#include "tools/probe/parts.h"

#include <fmt/format.h>

#include <algorithm>
#include <memory>

#include "hpcdl/core/clock.h"
#include "hpcdl/core/error.h"
#include "hpcdl/core/units.h"
#include "hpcdl/device.h"
#include "tools/doctor/software.h"

#if HPCDL_CUDA
#include "hpcdl/core/cuda_runtime.h"
#include "tools/compare/stopwatch.h"
#include "tools/probe/gpu_kernels.h"
#endif

namespace hpcdl::lab {

namespace {

void best(double& to, const Figure& f) { to = std::max(to, f.max); }

}  // namespace

double kept_by_l2(const Gpu& gpu) {
  double memory = 0, most = 0;
  for (const auto& b : gpu.bandwidth)
    if (b.level == "memory" && b.way == "read") memory = b.rate.median;
  double l2 = 0;
  for (const auto& s : gpu.stairs) l2 = std::max(l2, s.rate.median);
  if (memory <= 0 || l2 <= memory) return gpu.l2_bytes;
  // Of n bytes, m come from memory and n - m from L2, each at its own rate.
  for (const auto& s : gpu.stairs)
    if (s.rate.measured()) most = std::max(most, s.bytes * (1 - (1 / s.rate.median - 1 / l2) / (1 / memory - 1 / l2)));
  return std::min(most, gpu.l2_bytes);
}

Roofs roofs_of(const Gpu& gpu) {
  Roofs r;
  r.launch = gpu.replay_node.min;
  for (const auto& p : gpu.peaks) {
    if (p.dtype == "f32") best(r.f32, p.rate);
    if (p.dtype == "tf32") best(r.tf32, p.rate);
    if (p.dtype == "bf16" || p.dtype == "f16") best(r.bf16, p.rate);
    if (p.dtype == "i8") best(r.i8, p.rate);
  }
  r.f32 = std::max(r.f32, r.tf32 / 3);  // three products of parts keep the accuracy of f32
  CacheRoof l2{"L2", kept_by_l2(gpu)};
  for (const auto& b : gpu.bandwidth) {
    const bool memory = b.level == "memory";
    if (!memory && b.level != "L2") continue;
    if (b.way == "read") best(memory ? r.memory_read : l2.read, b.rate);
    if (b.way.starts_with("copy")) best(memory ? r.memory_copy : l2.copy, b.rate);
    if (b.way == "update") best(memory ? r.memory_update : l2.update, b.rate);
    if (b.way == "write" && memory) best(r.memory_write, b.rate);
  }
  r.caches = {l2};
  r.cache_bytes = l2.bytes, r.cache_read = l2.read;
  return r;
}

#if HPCDL_CUDA

namespace {

using cuda::check;

int attribute(cudaDeviceAttr a, int device) {
  int value = 0;
  check(cudaDeviceGetAttribute(&value, a, device), "cudaDeviceGetAttribute");
  return value;
}

template <class T> T* allocate(std::int64_t count) {
  void* p = nullptr;
  check(cudaMalloc(&p, static_cast<std::size_t>(count) * sizeof(T)), "memory to measure a GPU with");
  return static_cast<T*>(p);
}

constexpr int kNodes = 1000;
constexpr std::int64_t kHostBytes = std::int64_t{64} << 20, kLinkBytes = std::int64_t{256} << 20;

/// A GPU that is measured: its queue, its memory and its work.
class Bench {
 public:
  Bench(int device, std::int64_t bytes, bool quick)
      : device_(device), bytes_(bytes), seconds_(quick ? 0.7e-3 : 1.5e-3) {
    const cuda::OnDevice on(Device::cuda(device));
    processors_ = attribute(cudaDevAttrMultiProcessorCount, device);
    check(cudaStreamCreateWithFlags(&queue_, cudaStreamNonBlocking), "cudaStreamCreate");
    memory_ = allocate<std::byte>(bytes_);
    flag_ = allocate<int>(1);
    check(cudaMemsetAsync(memory_, 0x3c, static_cast<std::size_t>(bytes_), queue_), "cudaMemset");
    watch_ = std::make_unique<compare::Stopwatch>();
  }
  ~Bench() {
    if (graph_) cudaGraphExecDestroy(graph_);
    if (host_) cudaFreeHost(host_);
    cudaFree(memory_), cudaFree(flag_);
    cudaStreamDestroy(queue_);
  }
  Bench(const Bench&) = delete;
  Bench& operator=(const Bench&) = delete;

  /// Work per second by the GPU's clock.
  Rate rate(Rate::Work work) {
    return Rate(std::move(work), seconds_, 0, [this](const std::function<void()>& call) {
      const cuda::OnDevice on(Device::cuda(device_));
      watch_->start(queue_);
      call();
      return watch_->stop(queue_);
    });
  }
  double spin(std::size_t which, std::int64_t rounds) { return gpu::spin(which, processors_, rounds, flag_, queue_); }
  bool holds(std::size_t which) {
    check(cudaMemsetAsync(flag_, 0, sizeof(int), queue_), "cudaMemset");
    int flag = 0;
    if (spin(which, 1) > 0 && cudaGetLastError() == cudaSuccess)
      check(cudaMemcpyAsync(&flag, flag_, sizeof flag, cudaMemcpyDeviceToHost, queue_), "cudaMemcpy");
    check(cudaStreamSynchronize(queue_), "a loop of multiply-adds");
    return flag == 1;
  }
  double shared(std::int64_t rounds) { return gpu::read_shared(processors_, rounds * 64, flag_, queue_); }
  double sweep(gpu::Way w, std::int64_t bytes, std::int64_t repeats) {
    return gpu::sweep(w, memory_, bytes, repeats, processors_, queue_);
  }
  double copy_engine(std::int64_t repeats) {
    const auto half = static_cast<std::size_t>(bytes_ / 2);
    for (std::int64_t i = 0; i < repeats; ++i)
      check(cudaMemcpyAsync(memory_ + half, memory_, half, cudaMemcpyDeviceToDevice, queue_), "cudaMemcpy");
    return 2.0 * static_cast<double>(half) * static_cast<double>(repeats);
  }
  double over_bus(cudaMemcpyKind kind, std::int64_t repeats) {
    if (!host_) check(cudaMallocHost(&host_, static_cast<std::size_t>(kHostBytes)), "pinned memory");
    const auto n = static_cast<std::size_t>(kHostBytes);
    for (std::int64_t i = 0; i < repeats; ++i)
      check(kind == cudaMemcpyHostToDevice ? cudaMemcpyAsync(memory_, host_, n, kind, queue_)
                                           : cudaMemcpyAsync(host_, memory_, n, kind, queue_),
            "cudaMemcpy");
    return static_cast<double>(kHostBytes) * static_cast<double>(repeats);
  }
  double to_peer(const Bench& other, std::int64_t bytes, std::int64_t repeats) {
    for (std::int64_t i = 0; i < repeats; ++i)
      check(
          cudaMemcpyPeerAsync(other.memory_, other.device_, memory_, device_, static_cast<std::size_t>(bytes), queue_),
          "copy to another GPU");
    return static_cast<double>(bytes) * static_cast<double>(repeats);
  }

  /// Seconds by the host's clock.
  double launches(int n) {
    return timed([&] {
             for (int i = 0; i < n; ++i) gpu::launch_empty(queue_);
           }) /
           n;
  }
  double replay() {
    if (!graph_) graph_ = chain(kNodes);
    return timed([&] { check(cudaGraphLaunch(graph_, queue_), "cudaGraphLaunch"); });
  }

 private:
  template <class F> double timed(F&& f) {
    const cuda::OnDevice on(Device::cuda(device_));
    f();
    check(cudaStreamSynchronize(queue_), "an empty kernel");
    const auto start = Clock::now();
    f();
    check(cudaStreamSynchronize(queue_), "an empty kernel");
    return seconds_since(start);
  }
  cudaGraphExec_t chain(int nodes) {
    check(cudaStreamBeginCapture(queue_, cudaStreamCaptureModeThreadLocal), "cudaStreamBeginCapture");
    for (int i = 0; i < nodes; ++i) gpu::launch_empty(queue_);
    cudaGraph_t graph = nullptr;
    check(cudaStreamEndCapture(queue_, &graph), "cudaStreamEndCapture");
    cudaGraphExec_t exec = nullptr;
    const auto status = cudaGraphInstantiate(&exec, graph, 0);
    cudaGraphDestroy(graph);
    check(status, "cudaGraphInstantiate");
    return exec;
  }

  int device_;
  std::int64_t bytes_;
  double seconds_;
  int processors_ = 0;
  cudaStream_t queue_ = nullptr;
  std::byte* memory_ = nullptr;
  int* flag_ = nullptr;
  void* host_ = nullptr;
  cudaGraphExec_t graph_ = nullptr;
  std::unique_ptr<compare::Stopwatch> watch_;
};

/// Several times the size of L2, limited by the free memory.
std::int64_t sweep_bytes(const Gpu& g) {
  std::size_t free = 0, total = 0;
  const cuda::OnDevice on(Device::cuda(g.index));
  check(cudaMemGetInfo(&free, &total), "cudaMemGetInfo");
  const auto wanted = std::max<std::int64_t>(static_cast<std::int64_t>(16 * g.l2_bytes), kLinkBytes);
  return std::min<std::int64_t>(wanted, static_cast<std::int64_t>(free / 4)) / (1 << 20) * (1 << 20);
}

void add_bandwidth(Rounds& rounds, Gpu& g, Bench& b, std::int64_t bytes) {
  using gpu::Way;
  const auto inside =
      static_cast<std::int64_t>(g.l2_bytes / 3) / (1 << 20) * (1 << 20);  // of the part of it that is near
  for (const auto way : {Way::read, Way::write, Way::copy, Way::update})
    g.bandwidth.push_back({"memory", gpu::way_name(way), static_cast<double>(bytes)});
  g.bandwidth.push_back({"memory", "copy engine", static_cast<double>(bytes)});
  if (inside > 0)
    for (const auto way : {Way::read, Way::write, Way::copy, Way::update})
      g.bandwidth.push_back({"L2", gpu::way_name(way), static_cast<double>(inside)});
  g.bandwidth.push_back({"shared", "read", 0});
  for (const double part : {0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 1.0, 1.5}) {
    const auto n = static_cast<std::int64_t>(part * g.l2_bytes) / (1 << 20) * (1 << 20);
    if (n > 0 && n <= bytes) g.stairs.push_back({"L2", gpu::way_name(Way::read), static_cast<double>(n)});
  }
  for (auto& s : g.stairs)
    rounds.add(fmt::format("GPU {}: read {}", g.index, format_bytes(s.bytes)), s.rate,
               b.rate([&b, n = static_cast<std::int64_t>(s.bytes)](std::int64_t repeats) {
                 return b.sweep(Way::read, n, repeats);
               }));
  const auto way_of = [](const GpuBandwidth& x) {
    return x.way == "read" ? Way::read : x.way == "write" ? Way::write : x.way == "copy" ? Way::copy : Way::update;
  };
  for (auto& x : g.bandwidth) {
    std::function<double(std::int64_t)> work;
    if (x.level == "shared") work = [&b](std::int64_t n) { return b.shared(n); };
    else if (x.way == "copy engine") work = [&b](std::int64_t n) { return b.copy_engine(n); };
    else if (x.level == "memory")
      work = [&b, bytes, w = way_of(x)](std::int64_t n) {
        double sum = 0;
        for (std::int64_t i = 0; i < n; ++i) sum += b.sweep(w, bytes, 1);
        return sum;
      };
    else work = [&b, inside, w = way_of(x)](std::int64_t n) { return b.sweep(w, inside, n); };
    rounds.add(fmt::format("GPU {}: {} {}", g.index, x.level, x.way), x.rate, b.rate(std::move(work)));
  }
}

void add_peaks(Rounds& rounds, Gpu& g, Bench& b) {
  const auto& list = gpu::spins();
  g.peaks.reserve(list.size());
  for (std::size_t i = 0; i < list.size(); ++i) {
    if (!b.holds(i)) continue;
    g.peaks.push_back({list[i].unit, list[i].dtype, g.multiprocessors});
    rounds.add(fmt::format("GPU {}: {} {}", g.index, list[i].dtype, list[i].unit), g.peaks.back().rate,
               b.rate([&b, i](std::int64_t n) { return b.spin(i, n * 16); }));
  }
}

void add_overheads(Rounds& rounds, Gpu& g, Bench& b) {
  const auto add = [&](const char* what, Figure& to, std::function<double()> sample) {
    rounds.add(fmt::format("GPU {}: {}", g.index, what), to, std::move(sample));
  };
  add("host to device", g.host_to_device,
      b.rate([&b](std::int64_t n) { return b.over_bus(cudaMemcpyHostToDevice, n); }));
  add("device to host", g.device_to_host,
      b.rate([&b](std::int64_t n) { return b.over_bus(cudaMemcpyDeviceToHost, n); }));
  add("launch", g.launch, [&b] { return b.launches(kNodes); });
  add("round trip", g.round_trip, [&b] { return b.launches(1); });
  add("replay", g.replay_node, [&b] { return b.replay() / kNodes; });
}

void add_links(Rounds& rounds, Probe& p, std::vector<std::unique_ptr<Bench>>& benches) {
  for (std::size_t from = 0; from < benches.size(); ++from)
    for (std::size_t to = 0; to < benches.size(); ++to) {
      if (from == to) continue;
      const int a = static_cast<int>(from), b = static_cast<int>(to);
      int reaches = 0, atomics = 0;
      check(cudaDeviceCanAccessPeer(&reaches, a, b), "cudaDeviceCanAccessPeer");
      if (reaches) {
        const cuda::OnDevice on(Device::cuda(a));
        if (cudaDeviceEnablePeerAccess(b, 0) != cudaSuccess) (void)cudaGetLastError();  // already enabled
        check(cudaDeviceGetP2PAttribute(&atomics, cudaDevP2PAttrNativeAtomicSupported, a, b),
              "cudaDeviceGetP2PAttribute");
      }
      // Atomics on the memory of the other GPU only work over NVLink.
      p.gpu_links.push_back({a, b, atomics ? "nvlink" : reaches ? "pcie" : "pcie through the host", {}, {}});
    }
  for (auto& l : p.gpu_links) {
    Bench &from = *benches[static_cast<std::size_t>(l.from)], &to = *benches[static_cast<std::size_t>(l.to)];
    const auto what = fmt::format("GPU {} to {}", l.from, l.to);
    rounds.add(what, l.rate, from.rate([&from, &to](std::int64_t n) { return from.to_peer(to, kLinkBytes, n); }));
    rounds.add(what, l.seconds, [rate = from.rate([&from, &to](std::int64_t n) {
                 return from.to_peer(to, 16, n) / 16;
               })]() mutable { return 1 / rate(); });
  }
}

}  // namespace

Gpu describe_gpu(int index) {
  require(index < cuda_devices(), "probe", "no GPU number {}: this process sees {}", index, cuda_devices());
  cudaDeviceProp d{};
  check(cudaGetDeviceProperties(&d, index), "cudaGetDeviceProperties");
  Gpu g;
  g.index = index, g.name = d.name, g.driver = find_gpus(Places::here()).driver,
  g.compute_capability = fmt::format("{}.{}", d.major, d.minor);
  g.uuid = "GPU";
  for (int i = 0; i < 16; ++i)
    g.uuid += fmt::format("{}{:02x}", i == 0 || i == 4 || i == 6 || i == 8 || i == 10 ? "-" : "",
                          static_cast<unsigned char>(d.uuid.bytes[i]));
  g.multiprocessors = d.multiProcessorCount;
  g.clock_hz = 1e3 * attribute(cudaDevAttrClockRate, index),
  g.memory_clock_hz = 1e3 * attribute(cudaDevAttrMemoryClockRate, index);
  g.memory_bytes = static_cast<double>(d.totalGlobalMem), g.l2_bytes = d.l2CacheSize;
  return g;
}

void probe_gpus(Probe& p, bool quick, const OnProgress& progress) {
  const int n = cuda_devices();
  if (n == 0) return;
  for (int i = 0; i < n; ++i) p.gpus.push_back(describe_gpu(i));
  std::vector<std::unique_ptr<Bench>> benches;
  Rounds rounds;
  for (auto& g : p.gpus) {
    const auto bytes = sweep_bytes(g);
    auto& b = *benches.emplace_back(std::make_unique<Bench>(g.index, bytes, quick));
    const cuda::OnDevice on(Device::cuda(g.index));
    add_bandwidth(rounds, g, b, bytes);
    add_peaks(rounds, g, b);
    if (!quick) add_overheads(rounds, g, b);
  }
  if (!quick) add_links(rounds, p, benches);
  rounds.run(quick ? 5 : 15, quick ? 5 : 25, 5, progress);
}

#else

Gpu describe_gpu(int) {
  fail("probe", "this build has no CUDA: configure it with --preset cuda on a machine with nvcc");
}

void probe_gpus(Probe& p, bool, const OnProgress&) {
  if (const auto gpus = find_gpus(Places::here()); !gpus.gpus.empty() || gpus.on_bus > 0)
    p.gpu_note = fmt::format("GPUs found: {}; this build has no CUDA and does not measure them",
                             std::max(static_cast<int>(gpus.gpus.size()), gpus.on_bus));
}

#endif

}  // namespace hpcdl::lab
