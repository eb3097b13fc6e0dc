#pragma once
// Other installed software: found on PATH, in well-known folders and by the loader, with its version. Nothing is
// linked.

#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

namespace hpcdl::lab {

/// Where to search; tests use other places.
struct Places {
  std::filesystem::path root = "/";  // prefix of /proc, /sys, /usr
  std::string path;                  // folders with colons between
  std::string cuda_home;             // "": not set
  bool load_libraries = true;
  /// Those of this process: $PATH, $CUDA_HOME or $CUDA_PATH.
  static Places here();
};

struct Software {
  bool found = false;
  std::string version, where;  // where: program, library or folder
  std::string note;            // what is incomplete
};

/// The first dotted number in a text: "4.1.4" of "mpirun (Open MPI) 4.1.4"; "" without one.
std::string version_in(std::string_view text);
/// "2.28.9" for 22809: two digits for each number after the first.
std::string version_of_code(int code);

/// The executable file of this name in `places.path`; empty if there is none.
std::filesystem::path find_program(const Places& places, const std::string& name);
/// What a program prints on stdout and stderr, up to 64 KiB; empty if it cannot be started, fails, or takes longer
/// than `seconds`.
std::string ask(const std::filesystem::path& program, const std::vector<std::string>& words, double seconds = 5);

Software find_cuda_toolkit(const Places& places);
Software find_nccl(const Places& places);
Software find_cudnn(const Places& places);
Software find_cublaslt(const Places& places);
Software find_cupti(const Places& places);
Software find_mpi(const Places& places);
Software find_slurm(const Places& places);
/// The module `hpcdl` of the first python3 on PATH.
Software find_python_module(const Places& places);

struct GpuFact {
  std::string name;
  double memory_bytes = 0;                                       // 0: unknown
  std::string compute_capability = {};                           // "9.0"; "": unknown
  int ecc = -1;                                                  // 1: on, 0: off, -1: unknown or without
  long long uncorrected_errors = 0;                              // since the driver was loaded
  int pcie_generation = 0, pcie_width = 0, pcie_width_most = 0;  // of the link; 0: unknown
  bool mig = false;                                              // cut into instances
  bool slowed = false;                                           // now, by heat or power
};

struct GpuFacts {
  std::string driver;         // version; "": none
  std::string cuda;           // newest CUDA version the driver runs; "": unknown
  std::vector<GpuFact> gpus;  // GPUs that the driver shows
  int on_bus = 0;             // NVIDIA display and 3D controllers on the PCI bus
};

GpuFacts find_gpus(const Places& places);

}  // namespace hpcdl::lab
