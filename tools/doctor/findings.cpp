#include "tools/doctor/findings.h"

#include <fmt/format.h>
#include <sys/resource.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <fstream>

#include "hpcdl/comm/transport/mpi.h"
#include "hpcdl/core/units.h"

namespace hpcdl::lab {

namespace {

constexpr std::int64_t kMiB = std::int64_t{1} << 20, kGiB = std::int64_t{1} << 30;

std::string bytes(std::int64_t n) { return n < 0 ? "unlimited" : format_bytes(static_cast<double>(n)); }

std::int64_t limit(decltype(RLIMIT_NOFILE) what) {
  rlimit r{};
  return getrlimit(what, &r) != 0 || r.rlim_cur == RLIM_INFINITY ? -1 : static_cast<std::int64_t>(r.rlim_cur);
}

std::string slurm_job() {
  const auto env = [](const char* name) {
    const char* text = std::getenv(name);
    return std::string(text ? text : "");
  };
  if (env("SLURM_JOB_ID").empty()) return "";
  std::string s = "job " + env("SLURM_JOB_ID");
  if (!env("SLURM_JOB_NUM_NODES").empty()) s += ", " + env("SLURM_JOB_NUM_NODES") + " nodes";
  if (!env("SLURM_NTASKS").empty()) s += ", " + env("SLURM_NTASKS") + " tasks";
  return s;
}

Finding cores(const Facts& f) {
  const auto& m = f.machine;
  Finding x{"cores",
            fmt::format("{} used; {} online, {} allowed by affinity", f.threads, m.cpus_online, m.cpus_allowed)};
  x.value += m.cpu_quota > 0 ? fmt::format(", cgroup quota {:.4g}", m.cpu_quota) : ", no cgroup quota";
  if (m.cpu_quota > 0 && f.threads > static_cast<int>(std::ceil(m.cpu_quota)))
    return x.state = State::gap,
           x.cost = "more threads than the quota allows: all of them are stopped during a part of every period",
           x.fix = fmt::format("export HPCDL_THREADS={}", std::max(1, static_cast<int>(m.cpu_quota))), x;
  if (f.threads < m.cpus_allowed)
    return x.state = State::gap,
           x.cost = fmt::format("{} of {} allowed CPUs stay idle", m.cpus_allowed - f.threads, m.cpus_allowed),
           x.fix = "raise the cgroup quota, or unset OMP_NUM_THREADS and HPCDL_THREADS if they say less", x;
  if (m.cpus_allowed < m.cpus_online)
    return x.state = State::gap,
           x.cost =
               fmt::format("the affinity mask excludes {} of {} CPUs", m.cpus_online - m.cpus_allowed, m.cpus_online),
           x.fix = "taskset, docker --cpuset-cpus, srun --cpus-per-task or mpirun --bind-to none set it", x;
  return x;
}

Finding instruction_set(const Machine& m) {
  Finding x{"instruction set", m.isa + (m.isa == "amx"      ? ": AVX-512, bf16 and int8 products on tile registers"
                                        : m.isa == "avx512" ? ", bf16 and int8 products in hardware"
                                                            : "")};
  if (m.isa != m.isa_best)
    return x.state = State::gap,
           x.cost = fmt::format("this CPU runs {}, which is up to {} times as fast", m.isa_best,
                                m.isa == "scalar"     ? 16
                                : m.isa_best == "amx" ? 8
                                                      : 2),
           x.fix = "unset HPCDL_ISA", x;
  if (m.isa == "scalar")
    return x.state = State::gap, x.cost = "no AVX2: kernels run an order of magnitude below what a current CPU does",
           x.fix = "a CPU from 2015 or later, or a virtual machine that passes AVX2 on", x;
  if (m.isa == "avx2")
    return x.state = State::absent,
           x.cost = m.avx512 ? "AVX-512 without BF16 and VNNI, so the AVX2 kernels run: bf16 saves memory but no time"
                             : "no AVX-512 with BF16 and VNNI: half the f32 speed; bf16 saves memory but no time",
           x.fix = "AMD Zen 4 or Intel Sapphire Rapids and later have them", x;
  if (m.isa == "avx512" && m.amx)
    return x.state = State::gap,
           x.cost =
               "the CPU has AMX, but the system does not let processes use it: bf16 and int8 products are several "
               "times slower",
           x.fix = "Linux 5.16 or later, and a hypervisor that passes the tile registers on", x;
  return x;
}

void add_memory(const Facts& f, std::vector<Finding>& list) {
  const auto& m = f.machine;
  const auto usable = m.memory_limit ? std::min(m.memory_limit, m.memory_available) : m.memory_available;
  list.push_back(
      {"memory", fmt::format("{} available of {}{}", bytes(m.memory_available), bytes(m.memory_total),
                             m.memory_limit ? ", cgroup limit " + bytes(m.memory_limit) : ", no cgroup limit")});
  if (usable < 2 * kGiB)
    list.back().state = State::gap,
    list.back().cost = "little memory: only small models can be trained; generation still works from mapped files",
    list.back().fix = "raise the cgroup limit or free memory";
  list.push_back(
      {"huge pages", fmt::format("transparent: {}{}", m.huge_pages,
                                 f.huge_pages_reserved ? fmt::format(", {} reserved", f.huge_pages_reserved) : "")});
  if (m.huge_pages != "always" && m.huge_pages != "madvise")
    list.back().state = State::gap,
    list.back().cost = "first touch of memory is several times slower, and large matrices miss the TLB",
    list.back().fix = "as root: echo madvise > /sys/kernel/mm/transparent_hugepage/enabled";
  list.push_back({"/dev/shm", m.shm_free < 0 ? "none" : bytes(m.shm_free) + " free"});
  if (m.shm_free < 64 * kMiB)
    list.back().state = State::gap,
    list.back().cost = "ranks of one host cannot share memory: data that they exchange are copied twice",
    list.back().fix = "docker run --shm-size=1g, or mount a tmpfs at /dev/shm";
}

void add_limits(const Facts& f, std::vector<Finding>& list) {
  list.push_back({"memlock", bytes(f.memory_lock) + (f.infiniband ? ", InfiniBand present" : ", no InfiniBand")});
  if (f.infiniband && f.memory_lock >= 0 && f.memory_lock < kGiB)
    list.back().state = State::gap,
    list.back().cost = "InfiniBand cannot register buffers: MPI and NCCL fall back to TCP or fail",
    list.back().fix = "ulimit -l unlimited; memlock in /etc/security/limits.conf, LimitMEMLOCK=infinity for slurmd";
  list.push_back({"open files", f.open_files < 0 ? "unlimited" : fmt::format("{}", f.open_files)});
  if (f.open_files >= 0 && f.open_files < 1024)
    list.back().state = State::gap, list.back().cost = "models and data in many shards cannot be opened at once",
    list.back().fix = "ulimit -n 65536";
  list.push_back({"disk", f.disk_free < 0 ? "unknown" : fmt::format("{} free here", bytes(f.disk_free))});
  if (f.disk_free >= 0 && f.disk_free < kGiB)
    list.back().state = State::gap, list.back().cost = "checkpoints may not fit",
    list.back().fix = "another --out, or a smaller checkpoint.keep";
}

Finding gpu(const GpuFacts& g) {
  if (g.gpus.empty() && g.on_bus > 0 && g.driver.empty())
    return {"gpu", fmt::format("{} on the PCI bus, but no driver", g.on_bus), State::gap, "the GPUs cannot be used",
            "install the NVIDIA driver: apt-get install nvidia-driver, then nvidia-smi"};
  if (g.gpus.empty() && !g.driver.empty())
    return {"gpu", fmt::format("driver {}, but it shows no GPU", g.driver), State::gap, "the GPUs cannot be used",
            "docker run --gpus all, srun --gres=gpu:1, or look at nvidia-smi"};
  if (g.gpus.empty()) return {"gpu", "no GPU found", State::absent, "everything runs on the CPU", "none is needed"};
  std::string value;
  for (std::size_t i = 0; i < g.gpus.size();) {
    std::size_t same = i;
    while (same < g.gpus.size() && g.gpus[same].name == g.gpus[i].name) ++same;
    value += fmt::format("{}{} x {}{}", value.empty() ? "" : ", ", same - i, g.gpus[i].name,
                         g.gpus[i].memory_bytes > 0 ? " (" + format_bytes(g.gpus[i].memory_bytes) + ")" : "");
    i = same;
  }
  return {"gpu", value + fmt::format(", driver {}{}", g.driver.empty() ? "unknown" : g.driver,
                                     g.cuda.empty() ? "" : ", runs CUDA up to " + g.cuda)};
}

constexpr int kLeastCapability = 8;  // the oldest GPU for which kernels are compiled: A100

/// What each GPU has and lacks; nothing without a GPU.
void add_gpus(const Facts& f, std::vector<Finding>& list) {
  for (std::size_t i = 0; i < f.gpus.gpus.size(); ++i) {
    const auto& g = f.gpus.gpus[i];
    const auto name = [&](const char* what) {
      return f.gpus.gpus.size() > 1 ? fmt::format("gpu {} {}", i, what) : fmt::format("gpu {}", what);
    };
    if (!g.compute_capability.empty()) {
      list.push_back({name("kernels"), "compute capability " + g.compute_capability});
      if (!f.cuda_build)
        list.back().state = State::gap, list.back().value += "; this build has no CUDA",
        list.back().cost = "the GPU stays idle", list.back().fix = "cmake --preset cuda, where nvcc is";
      else if (std::atoi(g.compute_capability.c_str()) < kLeastCapability)
        list.back().state = State::gap, list.back().cost = "no kernel is compiled for a chip before the A100",
        list.back().fix = "a GPU of compute capability 8.0 or later";
      else if (i < f.gpu_roofs.size())
        list.back().value += fmt::format(", {:.0f} TFLOP/s bf16, {:.0f} f32, {:.0f} GB/s", f.gpu_roofs[i].bf16 / 1e12,
                                         f.gpu_roofs[i].f32 / 1e12, f.gpu_roofs[i].memory() / 1e9);
    }
    if (g.memory_bytes <= 0 && g.ecc < 0 && g.uncorrected_errors == 0) continue;  // only its name is known
    list.push_back(
        {name("memory"), fmt::format("{}, ECC {}", g.memory_bytes > 0 ? format_bytes(g.memory_bytes) : "unknown",
                                     g.ecc < 0 ? "unknown"
                                     : g.ecc   ? "on"
                                               : "off")});
    if (g.uncorrected_errors > 0)
      list.back().state = State::gap, list.back().value += fmt::format(", {} uncorrected errors", g.uncorrected_errors),
      list.back().cost = "results may be wrong",
      list.back().fix = "nvidia-smi -q -d ECC,ROW_REMAPPER; the administrator resets or replaces it";
    else if (g.ecc == 0)
      list.back().state = State::absent,
      list.back().cost = "a flipped bit in its memory is not noticed: a long run may learn from it",
      list.back().fix = "as root: nvidia-smi -e 1, and a reset";
    if (g.pcie_width > 0) {
      list.push_back({name("link"), fmt::format("PCIe {} x{}", g.pcie_generation, g.pcie_width)});
      if (g.pcie_width < g.pcie_width_most)
        list.back().state = State::gap,
        list.back().cost =
            fmt::format("copies to and from it run at {}/{} of their possible speed", g.pcie_width, g.pcie_width_most),
        list.back().fix =
            fmt::format("a slot with {} lanes; check the seating of the card and the riser", g.pcie_width_most);
    }
    if (g.mig)
      list.push_back({name("instances"), "cut by MIG", State::absent,
                      "a program gets only a part of the chip and of its memory",
                      "nothing, if this is intended; else nvidia-smi -mig 0 as root"});
    if (g.slowed)
      list.push_back({name("clocks"), "slowed by heat or power now", State::gap,
                      "everything on it is slower than it could be, and times wander",
                      "look at nvidia-smi -q -d PERFORMANCE,TEMPERATURE"});
  }
}

Finding software(const std::string& what, const Software& s, const std::string& cost, const std::string& fix) {
  if (!s.found) return {what, s.note.empty() ? "not found" : "not found: " + s.note, State::absent, cost, fix};
  Finding x{what, fmt::format("{}{}{}", s.version, s.version.empty() ? "" : " in ", s.where)};
  if (!s.note.empty()) x.state = State::absent, x.cost = s.note, x.fix = fix;
  return x;
}

/// What can start ranks, and which of these this program supports.
Finding mpi(const Facts& f) {
  auto x = software("mpi", f.mpi, "ranks on several hosts cannot be started with mpirun",
                    "apt-get install libopenmpi-dev openmpi-bin");
  if (!f.mpi.found) return x;
  x.value += f.mpi_library.empty() ? "; this program was built without MPI"
                                   : fmt::format("; this program was built with {}", f.mpi_library);
  if (f.mpi.note.find("as root") != std::string::npos) x.fix = "export these two variables, or run as a user";
  if (x.state != State::ok) return x;
  const auto family = [](const std::string& name) { return name.substr(0, name.find_first_of("0123456789")); };
  if (f.mpi_library.empty())
    x.state = State::absent, x.cost = "under mpirun, bytes between ranks go over TCP",
    x.fix = "build again on a machine with mpicc (-DHPCDL_MPI=ON)";
  else if (family(f.mpi_library) != family(f.mpi.version))
    x.state = State::gap,
    x.cost = fmt::format("ranks that this mpirun starts do not find each other over {}", f.mpi_library),
    x.fix = "the mpirun of the same MPI first on PATH, or dist.transport = \"tcp\"";
  return x;
}

/// Reported if the driver is older than the toolkit.
Finding toolkit(const Facts& f) {
  auto x = software("cuda toolkit", f.cuda, "GPU kernels cannot be built; the CPU part does not need it",
                    "developer.nvidia.com/cuda-downloads, or apt-get install nvidia-cuda-toolkit");
  const auto major = [](const std::string& v) { return std::atoi(v.c_str()); };
  if (f.cuda.found && !f.gpus.cuda.empty() && major(f.cuda.version) > major(f.gpus.cuda))
    return {x.what, x.value, State::gap,
            fmt::format("the driver runs CUDA up to {}: programs of this toolkit do not start", f.gpus.cuda),
            "a newer driver, or an older toolkit"};
  return x;
}

}  // namespace

std::string_view state_name(State s) { return s == State::ok ? "ok" : s == State::gap ? "gap" : "absent"; }

Facts gather_facts(const Places& places) {
  Facts f;
  f.machine = this_machine(places.root);
  std::ifstream(places.root / "proc/sys/vm/nr_hugepages") >> f.huge_pages_reserved;
  f.memory_lock = limit(RLIMIT_MEMLOCK), f.open_files = limit(RLIMIT_NOFILE);
  f.disk_free = free_disk_bytes(".");
  std::error_code ignored;
  f.infiniband = std::filesystem::directory_iterator(places.root / "sys/class/infiniband", ignored) !=
                 std::filesystem::directory_iterator();
  f.gpus = find_gpus(places);
  f.cuda = find_cuda_toolkit(places), f.nccl = find_nccl(places), f.cudnn = find_cudnn(places);
  f.cublaslt = find_cublaslt(places), f.cupti = find_cupti(places);
#if HPCDL_CUDA
  f.cuda_build = true;
#endif
#if HPCDL_CUDNN
  f.cudnn_build = true;
#endif
  f.mpi = find_mpi(places), f.slurm = find_slurm(places), f.python = find_python_module(places);
  f.mpi_library = comm::mpi_library();
  f.slurm_job = slurm_job();
  return f;
}

std::vector<Finding> findings(const Facts& f) {
  const auto& m = f.machine;
  const auto& r = f.roofs;
  std::vector<Finding> list;
  std::string caches;
  for (const auto& c : m.caches) caches += fmt::format(", L{} {}", c.level, bytes(c.bytes));
  list.push_back({"cpu", (m.cpu.empty() ? "unknown" : m.cpu) + caches});
  list.push_back(cores(f));
  list.push_back(instruction_set(m));
  list.push_back({"peak", fmt::format("{:.0f} GFLOP/s f32, {:.0f} bf16, {:.0f} GOP/s int8", r.f32 / 1e9, r.bf16 / 1e9,
                                      r.i8 / 1e9)});
  list.push_back({"bandwidth", fmt::format("{:.1f} GB/s read, {:.1f} copy, {:.0f} from cache ({})", r.memory_read / 1e9,
                                           r.memory_copy / 1e9, r.cache_read / 1e9, format_bytes(r.cache_bytes))});
  add_memory(f, list);
  add_limits(f, list);
  list.push_back(gpu(f.gpus));
  add_gpus(f, list);
  list.push_back(toolkit(f));
  list.push_back(software("nccl", f.nccl, "GPUs cannot exchange gradients over NVLink and InfiniBand",
                          "apt-get install libnccl-dev (from NVIDIA's repository)"));
  list.push_back(software("cublaslt", f.cublaslt, "products run only on the kernels of this program",
                          "apt-get install libcublas-dev-13-0 (from NVIDIA's repository)"));
  list.push_back(software("cudnn", f.cudnn, "convolutions and attention run only on the kernels of this program",
                          "apt-get install libcudnn9-dev-cuda-13 (from NVIDIA's repository)"));
  if (f.cuda_build && !f.cudnn_build && list.back().state == State::ok)
    list.back().state = State::absent, list.back().value += "; this build was made without cudnn_graph.h",
    list.back().cost = "convolutions and attention run only on the kernels of this program",
    list.back().fix = "configure and build again: cuDNN 9 is installed now";
  list.push_back(software("cupti", f.cupti,
                          "hpcdl profile times the records of a GPU by events, which is inaccurate for short kernels",
                          "apt-get install cuda-cupti-dev-13-0 (from NVIDIA's repository)"));
  list.push_back(mpi(f));
  auto slurm = software("slurm", f.slurm, "jobs cannot be submitted to a cluster from this machine",
                        "apt-get install slurm-wlm, or ask the administrator; a single host does not need it");
  if (!f.slurm_job.empty()) slurm.value += ", in " + f.slurm_job;
  list.push_back(slurm);
  list.push_back(software("python module", f.python, "import hpcdl does not work; the program needs no Python",
                          "pip install . in the source folder"));
  return list;
}

}  // namespace hpcdl::lab
