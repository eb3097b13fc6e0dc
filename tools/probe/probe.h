#pragma once
// What a machine can do at most, measured: rates in bytes and operations per second, times in seconds.

#include <filesystem>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "hpcdl/machine/machine.h"
#include "hpcdl/machine/remembered.h"
#include "tools/probe/figure.h"
#include "tools/roof_kernels.h"

namespace hpcdl::lab {

/// Sweeps over memory that stays within one level: "L1", "L2", "L3", "memory".
struct Bandwidth {
  std::string level;
  cpu::Sweep sweep = cpu::Sweep::read;
  int threads = 1;
  double bytes_per_thread = 0;  // working set
  Figure rate = {};             // bytes that the program accesses, all threads together
};

/// A load that depends on the previous one, at random positions of a working set.
struct LoadLatency {
  std::string level;
  double bytes = 0;
  Figure seconds = {};
};

struct Peak {
  std::string isa, dtype;
  int threads = 1;
  Figure rate = {};  // a multiply-add is two operations
};

/// Pool::run of an empty job: right after the previous one, and after the workers went to sleep.
struct Launch {
  int threads = 1;
  Figure awake = {}, asleep = {};
};

struct FirstTouch {
  std::string pages;  // "4 KiB", "huge"
  int threads = 1;
  Figure rate = {};
};

/// Latency in one direction between two CPUs through a shared cache line.
struct CoreToCore {
  int from = 0, to = 0;
  Figure seconds = {};
};

/// Sequential access to a file of `bytes`, which is removed afterwards. Cold: dropped from the page cache before each
/// read.
struct Disk {
  std::string folder, file_system;
  double bytes = 0;
  Figure write, read_cold, read_warm, read_direct;  // write: up to the return of fsync
  std::string note, direct_note;                    // why something was not measured
};

/// Bandwidth of one level of a GPU's memory: "memory", "L2", "shared".
struct GpuBandwidth {
  std::string level, way;  // way: "read", "write", "copy", "update", "copy engine"
  double bytes = 0;        // working set
  Figure rate = {};        // each read and each write counted
};

struct Gpu : GpuIdentity {
  int index = 0;
  std::string compute_capability;
  int multiprocessors = 0;
  double clock_hz = 0, memory_clock_hz = 0;  // highest ones
  double memory_bytes = 0, l2_bytes = 0;
  std::vector<GpuBandwidth> bandwidth;
  std::vector<GpuBandwidth> stairs;       // reads of increasing working sets, from well within L2 to beyond it
  std::vector<Peak> peaks;                // isa: "cuda", "mma" or "wgmma"
  Figure host_to_device, device_to_host;  // pinned host memory, bytes per second
  Figure launch, round_trip;              // seconds: of one of many queued launches; of a launch and the wait for it
  Figure replay_node;                     // seconds per node of a captured chain of empty kernels
};

/// Two GPUs of this host.
struct GpuLink {
  int from = 0, to = 0;
  std::string kind;  // "nvlink", "pcie"
  Figure rate, seconds;
};

struct Probe {
  Machine machine;
  std::string date, version;  // UTC, ISO 8601; of this program
  std::string isa;            // of everything but peaks
  bool quick = false;
  double seconds = 0;  // seconds that the probe took
  std::vector<Bandwidth> bandwidth;
  std::vector<Bandwidth> mixes;   // further ways, for roofs
  std::vector<Bandwidth> stairs;  // over all sizes; level: the level that holds the working set
  std::vector<LoadLatency> latency;
  std::vector<Peak> peaks;
  std::vector<Launch> launch;
  Figure replay_empty, replay_small;  // seconds per record: an empty one; relu of 16 numbers
  std::vector<FirstTouch> first_touch;
  std::vector<CoreToCore> core_to_core;
  Disk disk;
  struct OfThreads {
    int threads = 1;
    Roofs roofs;
  };
  std::vector<OfThreads> roofs;  // of `isa`
  std::vector<Gpu> gpus;
  std::string gpu_note = "no GPU found";  // why there are none
  std::vector<GpuLink> gpu_links;
};

struct ProbeOptions {
  bool cpu = true, gpus = true;
  std::vector<int> threads;          // empty: 1 .. usable_cpus(), beyond 8 only powers of two and the last
  bool quick = false;                // 3 s instead of half a minute
  std::filesystem::path disk = ".";  // empty: no disk
  std::string version;
};

/// Throws Error if even the smallest working set cannot be allocated.
Probe run_probe(const ProbeOptions& options, const OnProgress& progress = {});

/// Best rates of one instruction set and thread count; of one GPU.
Roofs roofs_of(const Probe& probe, const std::string& isa, int threads);
Roofs roofs_of(const Gpu& gpu);
/// Most bytes of L2 that a sweep finds again in the next one: less than its size if one half keeps copies of
/// the other half. Its size if the stairs were not measured.
double kept_by_l2(const Gpu& gpu);

/// The remark about a quick probe in text, JSON and picture.
inline constexpr const char* kQuickCaveat =
    "made with --quick: few rounds of small pieces; for figures to quote, run hpcdl probe without it";
nlohmann::ordered_json to_json(const Probe& probe);
/// For a terminal, about 40 lines of at most 100 columns.
std::string to_text(const Probe& probe);
/// Bandwidth over working set as a picture: a whole SVG file.
std::string to_svg(const Probe& probe);

std::string_view sweep_name(cpu::Sweep s);

}  // namespace hpcdl::lab
