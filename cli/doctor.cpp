// hpcdl doctor: what this machine has, what is missing, and which feature or speed that costs.

#include <filesystem>

#include "cli/verb.h"
#include "hpcdl/core/pool.h"
#include "hpcdl/core/units.h"
#include "hpcdl/lab/machine.h"
#include "hpcdl/lab/roofs.h"

namespace hpcdl::cli {

namespace {

struct Options {
  bool json = false, env = false;
};

struct Finding {
  std::string what, value, advice;  // empty advice: nothing is wrong
};

std::string bytes(std::int64_t n) { return n < 0 ? "none" : format_bytes(static_cast<double>(n)); }

Finding cores(const lab::Machine& m) {
  const int threads = usable_cpus();
  std::string value = fmt::format("{} used; {} online, {} allowed by affinity", threads, m.cpus_online, m.cpus_allowed);
  if (m.cpu_quota > 0) value += fmt::format(", cgroup quota {:.1f}", m.cpu_quota);
  if (threads < m.cpus_online) return {"cores", value, "fewer threads than cores: OMP_NUM_THREADS, HPCDL_THREADS, an affinity mask or a cgroup quota limits them"};
  return {"cores", value, ""};
}

Finding instruction_set(const lab::Machine& m) {
  const std::string value = m.isa + (m.isa != "avx512" ? "" : m.avx512_bf16 && m.avx512_vnni ? ", bf16 and int8 products in hardware" : "");
  if (m.isa != m.isa_best) return {"instruction set", value, fmt::format("HPCDL_ISA lowers it; this CPU runs {}", m.isa_best)};
  if (m.isa == "scalar") return {"instruction set", value, "no AVX2: kernels run an order of magnitude below what a current CPU does"};
  if (m.avx512 && !(m.avx512_bf16 && m.avx512_vnni))
    return {"instruction set", value, "AVX-512 without BF16 and VNNI: the AVX2 kernels are used; bf16 saves memory but no time"};
  if (m.isa == "avx2") return {"instruction set", value, "no AVX-512 with BF16 and VNNI: half the f32 speed; bf16 saves memory but no time"};
  return {"instruction set", value, ""};
}

std::vector<Finding> findings(const lab::Machine& m, const lab::Roofs& r) {
  std::vector<Finding> list;
  list.push_back({"cpu", m.cpu.empty() ? "unknown" : m.cpu, ""});
  list.push_back(cores(m));
  list.push_back(instruction_set(m));
  list.push_back({"peak", fmt::format("{:.0f} GFLOP/s f32, {:.0f} bf16, {:.0f} GOP/s int8", r.f32 / 1e9, r.bf16 / 1e9, r.i8 / 1e9), ""});
  list.push_back({"bandwidth", fmt::format("{:.1f} GB/s read, {:.1f} copy, {:.0f} from cache ({})", r.memory_read / 1e9, r.memory_copy / 1e9,
                                           r.cache_read / 1e9, format_bytes(r.cache_bytes)), ""});
  const auto limit = m.memory_limit ? std::min(m.memory_limit, m.memory_available) : m.memory_available;
  list.push_back({"memory", fmt::format("{} available of {}{}", bytes(m.memory_available), bytes(m.memory_total),
                                        m.memory_limit ? ", cgroup limit " + bytes(m.memory_limit) : ""),
                  limit < (std::int64_t{2} << 30) ? "little memory: train small models; generation still works from mapped files" : ""});
  list.push_back({"huge pages", m.huge_pages,
                  m.huge_pages == "always" || m.huge_pages == "madvise"
                      ? ""
                      : "first touch of memory is several times slower; as root: echo madvise > /sys/kernel/mm/transparent_hugepage/enabled"});
  list.push_back({"/dev/shm", m.shm_free < 0 ? "none" : bytes(m.shm_free) + " free",
                  m.shm_free < (std::int64_t{64} << 20) ? "ranks of one host cannot share memory: collectives fall back to copies (docker: --shm-size=1g)" : ""});
  const auto disk = lab::free_disk_bytes(".");
  list.push_back({"disk", fmt::format("{} free here", bytes(disk)), disk >= 0 && disk < (std::int64_t{1} << 30) ? "checkpoints may not fit" : ""});
  list.push_back({"gpu", std::filesystem::exists("/proc/driver/nvidia") ? "driver present" : "none", std::filesystem::exists("/proc/driver/nvidia") ? "" : "CPU only"});
  return list;
}

constexpr const char* kEnvironment[] = {"HPCDL_THREADS", "HPCDL_ISA", "OMP_NUM_THREADS", "XDG_CACHE_HOME", "TMPDIR", "NO_COLOR", "HOME"};

int doctor(Options& o) {
  Pool pool;
  const auto machine = lab::this_machine();
  const auto list = findings(machine, lab::roofs(pool, lab::Remember::best));
  if (o.json) {
    Json j;
    for (const auto& f : list) j[f.what] = {{"value", f.value}, {"advice", f.advice}};
    for (const char* name : kEnvironment)
      if (const char* value = std::getenv(name)) j["environment"][name] = value;
    print_json(j);
    return exit_code::kDone;
  }
  std::string text;
  for (const auto& f : list) {
    text += fmt::format("{} {:<16} {}\n", f.advice.empty() ? "ok " : " ! ", f.what, f.value);
    if (!f.advice.empty()) text += fmt::format("{:20} {}\n", "", f.advice);
  }
  if (o.env)
    for (const char* name : kEnvironment)
      if (const char* value = std::getenv(name)) text += fmt::format("env {:<16} {}\n", name, value);
  text += fmt::format("peaks are the best of all measurements, kept in {}\n", lab::roofs_file(pool).string());
  print_text(text);
  return exit_code::kDone;
}

}  // namespace

void add_doctor(CLI::App& app, Run& run) {
  add_verb<Options>(app, run, "doctor", "What this machine has, what is missing, and what that costs",
                    [](CLI::App& sub, Options& o) {
                      sub.add_flag("--json", o.json, "One JSON object on stdout");
                      sub.add_flag("--env", o.env, "Also the environment variables that were seen");
                    }, doctor);
}

}  // namespace hpcdl::cli
