#include <fmt/format.h>

#include <fstream>
#include <iterator>

#include "tools/doctor/software.h"
#include "tools/shared_library.h"

namespace hpcdl::lab {

namespace {

namespace fs = std::filesystem;

std::string content_of(const fs::path& file) {
  std::ifstream in(file);
  return {std::istreambuf_iterator<char>(in), {}};
}

int nvidia_on_bus(const fs::path& root) {
  int n = 0;
  std::error_code ignored;
  for (const auto& device : fs::directory_iterator(root / "sys/bus/pci/devices", ignored))
    // Class 0x03: display controllers, which includes accelerators without a display.
    n += content_of(device.path() / "vendor").starts_with("0x10de") &&
         content_of(device.path() / "class").starts_with("0x03");
  return n;
}

/// The driver's files under /proc: its version, and a folder for each GPU.
void from_proc(const fs::path& root, GpuFacts& facts) {
  const auto folder = root / "proc/driver/nvidia";
  facts.driver = version_in(content_of(folder / "version"));
  std::error_code ignored;
  for (const auto& gpu : fs::directory_iterator(folder / "gpus", ignored)) {
    const auto text = content_of(gpu.path() / "information");
    const auto at = text.find("Model:");
    const auto begin = at == std::string::npos ? at : text.find_first_not_of(" \t", at + 6);
    facts.gpus.emplace_back().name =
        begin == std::string::npos ? "NVIDIA GPU" : text.substr(begin, text.find('\n', begin) - begin);
  }
}

/// What NVML reports about one GPU besides its name and memory; if it lacks a function, that fact stays unknown.
void ask_more(const SharedLibrary& nvml, void* device, GpuFact& g) {
  const auto number = [&](const char* name) {
    unsigned value = 0;
    const auto get = nvml.function<int(void*, unsigned*)>(name);
    return get && get(device, &value) == 0 ? static_cast<int>(value) : 0;
  };
  g.pcie_generation = number("nvmlDeviceGetCurrPcieLinkGeneration");
  g.pcie_width = number("nvmlDeviceGetCurrPcieLinkWidth"), g.pcie_width_most = number("nvmlDeviceGetMaxPcieLinkWidth");
  int first = 0, second = 0;
  const auto pair = [&](const char* name) {
    const auto get = nvml.function<int(void*, int*, int*)>(name);
    return get && get(device, &first, &second) == 0;
  };
  if (pair("nvmlDeviceGetCudaComputeCapability")) g.compute_capability = fmt::format("{}.{}", first, second);
  if (pair("nvmlDeviceGetEccMode")) g.ecc = first;
  if (pair("nvmlDeviceGetMigMode")) g.mig = first == 1;
  unsigned long long value = 0;
  const auto errors = nvml.function<int(void*, int, int, unsigned long long*)>("nvmlDeviceGetTotalEccErrors");
  constexpr int kUncorrected = 1, kSinceLoad = 0;
  if (errors && errors(device, kUncorrected, kSinceLoad, &value) == 0)
    g.uncorrected_errors = static_cast<long long>(value);
  const auto reasons = nvml.function<int(void*, unsigned long long*)>("nvmlDeviceGetCurrentClocksThrottleReasons");
  constexpr unsigned long long kHardware = 0x8, kThermal = 0x20 | 0x40, kPowerBrake = 0x80;
  if (reasons && reasons(device, &value) == 0) g.slowed = (value & (kHardware | kThermal | kPowerBrake)) != 0;
}

/// NVML knows the memory and the CUDA version, too. Its header is not needed for plain C functions.
void from_nvml(GpuFacts& facts) {
  const SharedLibrary nvml({"libnvidia-ml.so.1"});
  const auto init = nvml.function<int()>("nvmlInit_v2"), shutdown = nvml.function<int()>("nvmlShutdown");
  const auto count = nvml.function<int(unsigned*)>("nvmlDeviceGetCount_v2");
  const auto handle = nvml.function<int(unsigned, void**)>("nvmlDeviceGetHandleByIndex_v2");
  const auto name = nvml.function<int(void*, char*, unsigned)>("nvmlDeviceGetName");
  struct Memory {
    unsigned long long total, free, used;
  };
  const auto memory = nvml.function<int(void*, Memory*)>("nvmlDeviceGetMemoryInfo");
  const auto driver = nvml.function<int(char*, unsigned)>("nvmlSystemGetDriverVersion");
  const auto cuda = nvml.function<int(int*)>("nvmlSystemGetCudaDriverVersion_v2");
  if (!init || !shutdown || !count || !handle || !name || !memory || init() != 0) return;
  char text[96] = {};
  if (driver && driver(text, sizeof text) == 0) facts.driver = text;
  if (int v = 0; cuda && cuda(&v) == 0) facts.cuda = fmt::format("{}.{}", v / 1000, v % 1000 / 10);
  if (unsigned n = 0; count(&n) == 0) {
    facts.gpus.clear();
    for (unsigned i = 0; i < n; ++i) {
      void* device = nullptr;
      Memory m{};
      if (handle(i, &device) != 0) continue;
      auto& g = facts.gpus.emplace_back();
      g.name = name(device, text, sizeof text) == 0 ? text : "NVIDIA GPU",
      g.memory_bytes = memory(device, &m) == 0 ? static_cast<double>(m.total) : 0;
      ask_more(nvml, device, g);
    }
  }
  shutdown();
}

}  // namespace

GpuFacts find_gpus(const Places& places) {
  GpuFacts facts;
  facts.on_bus = nvidia_on_bus(places.root);
  from_proc(places.root, facts);
  if (places.load_libraries) from_nvml(facts);
  return facts;
}

}  // namespace hpcdl::lab
