// hpcdl doctor: what this machine has, what is missing, which feature or speed that costs, and how to fix it.

#include <algorithm>
#include <nlohmann/json.hpp>

#include "cli/verb.h"
#include "hpcdl/machine/remembered.h"
#include "tools/doctor/findings.h"
#include "tools/measure_roofs.h"

namespace hpcdl::cli {

namespace {

struct DoctorOptions {
  bool json = false, env = false;
};

constexpr const char* kEnvironment[] = {"HPCDL_THREADS",
                                        "HPCDL_ISA",
                                        "OMP_NUM_THREADS",
                                        "XDG_CACHE_HOME",
                                        "TMPDIR",
                                        "NO_COLOR",
                                        "HOME",
                                        "PATH",
                                        "CUDA_HOME",
                                        "CUDA_PATH",
                                        "CUDA_VISIBLE_DEVICES",
                                        "LD_LIBRARY_PATH",
                                        "HPCDL_LOG",
                                        "HPCDL_NCCL_LIBRARY",
                                        "HPCDL_SECRET_FILE",
                                        "NCCL_DEBUG",
                                        "NCCL_SOCKET_IFNAME",
                                        "NCCL_IB_HCA",
                                        "NCCL_IB_DISABLE",
                                        "NCCL_P2P_DISABLE",
                                        "NCCL_NVLS_ENABLE",
                                        "NCCL_ALGO",
                                        "NCCL_PROTO",
                                        "SLURM_JOB_ID",
                                        "SLURM_JOB_NUM_NODES",
                                        "SLURM_NTASKS"};

Json object(const std::vector<lab::Finding>& list) {
  Json j;
  for (const auto& f : list) {
    j[f.what] = {{"value", f.value}, {"state", lab::state_name(f.state)}};
    if (f.state != lab::State::ok) j[f.what]["cost"] = f.cost, j[f.what]["fix"] = f.fix;
  }
  return j;
}

std::string text(const std::vector<lab::Finding>& list) {
  std::string s;
  for (const auto& f : list) {
    const char* mark = f.state == lab::State::ok ? "ok " : f.state == lab::State::gap ? " ! " : " - ";
    s += fmt::format("{} {:<16} {}\n", mark, f.what, f.value);
    if (f.state == lab::State::ok) continue;
    s += fmt::format("{:20} {}\n{:20} fix: {}\n", "", f.cost, "", f.fix);
  }
  const auto count = [&](lab::State state) {
    return std::count_if(list.begin(), list.end(), [&](const auto& f) { return f.state == state; });
  };
  return s + fmt::format("{} in order, {} to fix (!), {} missing or incomplete that only some uses need (-)\n",
                         count(lab::State::ok), count(lab::State::gap), count(lab::State::absent));
}

int doctor(DoctorOptions& o) {
  Pool pool;
  auto facts = lab::gather_facts(lab::Places::here());
  facts.threads = pool.threads();
  facts.roofs = lab::roofs(pool, lab::Remember::best);
  for (int i = 0; i < cuda_devices(); ++i) facts.gpu_roofs.push_back(lab::roofs(Device::cuda(i), pool));
  const auto list = lab::findings(facts);
  if (o.json) {
    Json j = object(list);
    for (const char* name : kEnvironment)
      if (const char* value = std::getenv(name)) j["environment"][name] = value;
    print_json(j);
    return exit_code::kDone;
  }
  std::string all = text(list);
  if (o.env)
    for (const char* name : kEnvironment)
      if (const char* value = std::getenv(name)) all += fmt::format("env {:<20} {}\n", name, value);
  print_text(all +
             fmt::format("peaks are the best of all measurements, which are kept in {}; hpcdl probe measures more\n",
                         lab::probe_file().string()));
  return exit_code::kDone;
}

}  // namespace

void add_doctor(const Command& program, Run& run) {
  add_verb<DoctorOptions>(
      program, run, "doctor", "Says what this machine has, what is missing, what that costs, and the fix",
      [](const Command& sub, DoctorOptions& o) {
        sub.flag("--json", o.json, "One JSON object on stdout");
        sub.flag("--env", o.env, "Also print the environment variables that were seen");
      },
      doctor);
}

}  // namespace hpcdl::cli
