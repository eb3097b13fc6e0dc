#include <gtest/gtest.h>
#include <sys/stat.h>

#include <algorithm>
#include <chrono>
#include <fstream>
#include <regex>

#include "hpcdl/io/temp_folder.h"
#include "hpcdl/train/run_table.h"
#include "tools/doctor/findings.h"

namespace hpcdl::lab {
namespace {

namespace fs = std::filesystem;

void write(const fs::path& file, const std::string& text) {
  fs::create_directories(file.parent_path());
  std::ofstream(file) << text;
}

void script(const fs::path& file, const std::string& body) {
  write(file, "#!/bin/sh\n" + body + "\n");
  fs::permissions(file, fs::perms::owner_all);
}

/// A machine on which only files of the test can be found.
class Doctor : public testing::Test {
 protected:
  io::TempFolder tmp_;
  fs::path bin_ = tmp_ / "bin";
  Places places_{.root = tmp_ / "root", .path = bin_.string(), .cuda_home = "", .load_libraries = false};
};

TEST(versions, are_the_first_dotted_number) {
  EXPECT_EQ(version_in("mpirun (Open MPI) 4.1.4"), "4.1.4");
  EXPECT_EQ(version_in("slurm-wlm 22.05.8"), "22.05.8");
  EXPECT_EQ(version_in("release 13.0, V13.0.88"), "13.0");
  EXPECT_EQ(version_in("NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.54.15  Tue"), "550.54.15");
  EXPECT_EQ(version_in("year 2025. No version 3."), "");
  EXPECT_EQ(version_in(""), "");
  EXPECT_EQ(version_of_code(22809), "2.28.9");
  EXPECT_EQ(version_of_code(91900), "9.19.0");
  EXPECT_EQ(version_of_code(8907), "8.9.7");
}

TEST_F(Doctor, asks_programs_and_does_not_wait_for_ever) {
  script(bin_ / "talks", "echo out; echo err >&2");
  script(bin_ / "fails", "echo no; exit 3");
  script(bin_ / "hangs", "sleep 60");
  script(bin_ / "floods", "head -c 300000 /dev/zero | tr '\\\\0' x");
  EXPECT_EQ(ask(bin_ / "talks", {}), "out\nerr\n");
  EXPECT_EQ(ask(bin_ / "fails", {}), "");
  EXPECT_EQ(ask(bin_ / "none", {}), "");
  EXPECT_EQ(ask(bin_ / "floods", {}).size(), std::size_t{1} << 16);
  const auto start = std::chrono::steady_clock::now();
  EXPECT_EQ(ask(bin_ / "hangs", {}, 0.2), "");
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(30)) << "it must be killed, not waited for";
}

TEST_F(Doctor, finds_only_what_may_be_run) {
  write(bin_ / "plain", "text");
  fs::create_directories(bin_ / "folder");
  script(bin_ / "tool", "");
  EXPECT_EQ(find_program(places_, "tool"), bin_ / "tool");
  for (const char* name : {"plain", "folder", "none"}) EXPECT_TRUE(find_program(places_, name).empty()) << name;
}

TEST_F(Doctor, an_empty_machine_lacks_everything) {
  for (const auto& s : {find_cuda_toolkit(places_), find_nccl(places_), find_cudnn(places_), find_mpi(places_),
                        find_slurm(places_), find_python_module(places_)})
    EXPECT_FALSE(s.found) << s.where;
  const auto g = find_gpus(places_);
  EXPECT_TRUE(g.gpus.empty() && g.driver.empty() && g.on_bus == 0);
}

TEST_F(Doctor, reports_versions_of_installed_software) {
  script(bin_ / "mpirun", "if [ $1 = --version ]; then echo 'mpirun (Open MPI) 4.1.4'; else echo no; exit 1; fi");
  EXPECT_EQ(find_mpi(places_).version, "Open MPI 4.1.4");
  EXPECT_NE(find_mpi(places_).note.find("mpicc"), std::string::npos);
  script(bin_ / "mpicc", "");
  EXPECT_NE(find_mpi(places_).note, "") << "this mpirun cannot start a program";
  script(bin_ / "mpirun", "if [ $1 = --version ]; then echo 'mpirun (Open MPI) 4.1.4'; else echo started; fi");
  EXPECT_EQ(find_mpi(places_).note, "");
  script(bin_ / "srun", "echo slurm 23.11.4");
  EXPECT_EQ(find_slurm(places_).version, "23.11.4");
  EXPECT_EQ(find_slurm(places_).note, "not there: sbatch, sinfo");
  script(bin_ / "sbatch", "");
  script(bin_ / "sinfo", "exit 1");
  EXPECT_NE(find_slurm(places_).note.find("controller"), std::string::npos);
  script(bin_ / "sinfo", "echo a1; echo a2; echo a1");
  EXPECT_EQ(find_slurm(places_).note, "");
  EXPECT_EQ(find_slurm(places_).version, "23.11.4, 2 nodes");
  script(places_.root / "usr/local/cuda/bin/nvcc",
         "echo 'Copyright (c) 2005-2025'; echo 'Cuda compilation tools, release 13.0, V13.0.88'");
  EXPECT_EQ(find_cuda_toolkit(places_).version, "13.0");
  EXPECT_NE(find_cuda_toolkit(places_).note.find("PATH"), std::string::npos);
  script(bin_ / "python3", "echo /some/hpcdl/__init__.py; echo 0.1.0");
  EXPECT_EQ(find_python_module(places_).version, "0.1.0");
  EXPECT_EQ(find_python_module(places_).where, "/some/hpcdl/__init__.py");
  script(bin_ / "python3", "exit 1");
  EXPECT_FALSE(find_python_module(places_).found);
  // A python3 that does not search this folder, as with PYTHONSAFEPATH=1.
  write(bin_ / "hpcdl.py", "__version__ = '0.2.0'");
  script(bin_ / "python3",
         "PYTHONPATH=" + bin_.string() + " PYTHONDONTWRITEBYTECODE=1 exec /usr/bin/python3 -P \"$@\"");
  const bool can = !ask("/usr/bin/python3", {"-P", "-c", "print('yes')"}).empty();
  EXPECT_EQ(find_python_module(places_).version, can ? "0.2.0" : "");
}

TEST_F(Doctor, sees_gpus_with_and_without_a_driver) {
  const auto device = places_.root / "sys/bus/pci/devices/0000:01:00.0";
  write(device / "vendor", "0x10de\n");
  write(device / "class", "0x030200\n");
  write(places_.root / "sys/bus/pci/devices/0000:02:00.0/vendor", "0x10de\n");  // its audio device
  write(places_.root / "sys/bus/pci/devices/0000:02:00.0/class", "0x040300\n");
  EXPECT_EQ(find_gpus(places_).on_bus, 1);
  Facts f;
  f.gpus = find_gpus(places_);
  const auto gpu = [&] {
    const auto list = findings(f);
    return *std::find_if(list.begin(), list.end(), [](const auto& x) { return x.what == "gpu"; });
  };
  EXPECT_EQ(gpu().state, State::gap);
  EXPECT_NE(gpu().fix.find("driver"), std::string::npos);
  write(places_.root / "proc/driver/nvidia/version",
        "NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.54.15  Tue Mar  5\n");
  f.gpus = find_gpus(places_);
  EXPECT_EQ(gpu().state, State::gap) << "a driver without a visible GPU, as in a container";
  write(places_.root / "proc/driver/nvidia/gpus/0000:01:00.0/information", "Model: \t\t NVIDIA H100\nIRQ: 7\n");
  f.gpus = find_gpus(places_);
  EXPECT_EQ(gpu().state, State::ok);
  EXPECT_EQ(gpu().value, "1 x NVIDIA H100, driver 550.54.15");
}

Facts good() {
  Facts f;
  f.machine.cpu = "CPU", f.machine.isa = f.machine.isa_best = "avx512", f.machine.huge_pages = "madvise";
  f.machine.cpus_online = f.machine.cpus_allowed = f.threads = 8;
  f.machine.memory_total = f.machine.memory_available = std::int64_t{64} << 30,
  f.machine.shm_free = std::int64_t{8} << 30;
  f.open_files = 4096, f.disk_free = std::int64_t{100} << 30;
  for (auto* s : {&f.cuda, &f.nccl, &f.cudnn, &f.cublaslt, &f.cupti, &f.mpi, &f.slurm, &f.python})
    *s = {true, "1.0", "/usr", ""};
  GpuFact gpu{"GPU", 1e9};
  gpu.compute_capability = "9.0", gpu.ecc = 1, gpu.pcie_generation = 5, gpu.pcie_width = gpu.pcie_width_most = 16;
  f.gpus = {"1.0", "13.0", {gpu}, 1};
  f.cuda_build = f.cudnn_build = true;
  f.cuda.version = "12.4", f.mpi.version = f.mpi_library = "Open MPI 4.1.4";
  return f;
}

std::vector<Finding> wrong(const Facts& f) {
  std::vector<Finding> list;
  for (auto& x : findings(f))
    if (x.state != State::ok) list.push_back(std::move(x));
  return list;
}

TEST(findings, a_gpu_shows_what_it_can) {
  Facts f = good();
  f.gpu_roofs = {{.f32 = 1.6e14, .bf16 = 9.5e14, .i8 = 1, .memory_read = 4.5e12, .memory_copy = 4e12, .caches = {}}};
  const auto list = findings(f);
  const auto value = [&](const char* what) {
    return std::find_if(list.begin(), list.end(), [&](const auto& x) { return x.what == what; })->value;
  };
  EXPECT_EQ(value("gpu kernels"), "compute capability 9.0, 950 TFLOP/s bf16, 160 f32, 4500 GB/s");
  EXPECT_EQ(value("gpu link"), "PCIe 5 x16");
  EXPECT_NE(value("gpu memory").find("ECC on"), std::string::npos);
}

TEST(findings, nothing_is_wrong_with_a_good_machine) {
  const auto list = wrong(good());
  EXPECT_TRUE(list.empty()) << list[0].what << ": " << list[0].cost;
}

TEST(findings, every_gap_has_its_cost_and_its_fix) {
  const std::pair<const char*, void (*)(Facts&)> cases[] = {
      {"cores", [](Facts& f) { f.machine.cpu_quota = 2; }},
      {"cores", [](Facts& f) { f.threads = 4; }},
      {"cores", [](Facts& f) { f.machine.cpus_allowed = f.threads = 4; }},
      {"instruction set", [](Facts& f) { f.machine.isa = "avx2"; }},
      {"instruction set", [](Facts& f) { f.machine.isa = f.machine.isa_best = "scalar"; }},
      {"instruction set", [](Facts& f) { f.machine.isa = f.machine.isa_best = "avx2"; }},
      {"instruction set", [](Facts& f) { f.machine.isa_best = "amx"; }},
      {"instruction set", [](Facts& f) { f.machine.amx = true; }},
      {"memory", [](Facts& f) { f.machine.memory_limit = 1 << 30; }},
      {"huge pages", [](Facts& f) { f.machine.huge_pages = "never"; }},
      {"/dev/shm", [](Facts& f) { f.machine.shm_free = 64 << 10; }},
      {"/dev/shm", [](Facts& f) { f.machine.shm_free = -1; }},
      {"memlock", [](Facts& f) { f.infiniband = true, f.memory_lock = 64 << 10; }},
      {"open files", [](Facts& f) { f.open_files = 256; }},
      {"disk", [](Facts& f) { f.disk_free = 1 << 20; }},
      {"gpu", [](Facts& f) { f.gpus = {}; }},
      {"gpu kernels", [](Facts& f) { f.cuda_build = false; }},
      {"gpu kernels", [](Facts& f) { f.gpus.gpus[0].compute_capability = "7.5"; }},
      {"gpu memory", [](Facts& f) { f.gpus.gpus[0].ecc = 0; }},
      {"gpu memory", [](Facts& f) { f.gpus.gpus[0].uncorrected_errors = 3; }},
      {"gpu link", [](Facts& f) { f.gpus.gpus[0].pcie_width = 8; }},
      {"gpu instances", [](Facts& f) { f.gpus.gpus[0].mig = true; }},
      {"gpu clocks", [](Facts& f) { f.gpus.gpus[0].slowed = true; }},
      {"cublaslt", [](Facts& f) { f.cublaslt = {}; }},
      {"cupti", [](Facts& f) { f.cupti = {}; }},
      {"cuda toolkit", [](Facts& f) { f.cuda = {}; }},
      {"cuda toolkit", [](Facts& f) { f.cuda.version = "14.1"; }},
      {"nccl", [](Facts& f) { f.nccl = {}; }},
      {"cudnn", [](Facts& f) { f.cudnn.note = "no header"; }},
      {"cudnn", [](Facts& f) { f.cudnn_build = false; }},
      {"mpi", [](Facts& f) { f.mpi = {}; }},
      {"mpi", [](Facts& f) { f.mpi.note = "starts nothing"; }},
      {"mpi", [](Facts& f) { f.mpi_library = ""; }},
      {"mpi", [](Facts& f) { f.mpi_library = "MPICH 4.0.2"; }},
      {"slurm", [](Facts& f) { f.slurm = {}; }},
      {"python module", [](Facts& f) { f.python = {}; }},
  };
  train::RunConfig config;
  const auto table = train::table_of(config);
  for (const auto& [what, spoil] : cases) {
    Facts f = good();
    spoil(f);
    const auto list = wrong(f);
    ASSERT_EQ(list.size(), 1u) << what;
    EXPECT_EQ(list[0].what, what);
    EXPECT_FALSE(list[0].cost.empty() || list[0].fix.empty()) << what;
    const std::regex key("\\b(train|data|dist|model|checkpoint)\\.[a-z_]+");
    for (std::sregex_iterator i(list[0].fix.begin(), list[0].fix.end(), key), end; i != end; ++i)
      EXPECT_TRUE(std::any_of(table.fields().begin(), table.fields().end(),
                              [&](const auto& field) { return field.key == i->str(); }))
          << i->str() << " is no key of a run";
  }
  Facts f = good();
  f.machine.cpu_quota = 2;
  EXPECT_NE(wrong(f)[0].fix.find("HPCDL_THREADS=2"), std::string::npos);
}

}  // namespace
}  // namespace hpcdl::lab
