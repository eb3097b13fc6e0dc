// A model larger than the memory a process may have still generates: its weights are views into the file, and the
// kernel drops clean pages as it needs the room; or its layers stream through blocks of memory. The child runs in a memory cgroup if one can be created (cgroup v1 or
// v2, as root), else with RLIMIT_DATA, which limits what a process allocates but not what it maps.

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <fstream>

#include "hpcdl/infer/engine.h"
#include "hpcdl/io/temp_folder.h"
#include "hpcdl/models/family.h"
#include "hpcdl/models/language_model.h"

namespace hpcdl {
namespace {

namespace fs = std::filesystem;

constexpr std::int64_t kLimit = std::int64_t{72} << 20;

class MemoryCgroup {
 public:
  MemoryCgroup() {
    const std::string name = "hpcdl-test-" + std::to_string(getpid());
    for (const auto& [root, file] :
         {std::pair{"/sys/fs/cgroup/memory", "memory.limit_in_bytes"}, {"/sys/fs/cgroup", "memory.max"}}) {
      std::error_code failed;
      const fs::path folder = fs::path(root) / name;
      if (!fs::create_directory(folder, failed)) continue;
      folder_ = folder;
      if (write(file, kLimit)) return;
      fs::remove(folder_, failed);
      folder_.clear();
    }
  }
  MemoryCgroup(const MemoryCgroup&) = delete;
  MemoryCgroup& operator=(const MemoryCgroup&) = delete;
  ~MemoryCgroup() {
    std::error_code ignored;
    for (int i = 0; !folder_.empty() && fs::exists(folder_, ignored) && !fs::remove(folder_, ignored) && i < 100; ++i)
      usleep(10'000);
  }
  explicit operator bool() const { return !folder_.empty(); }
  bool join() const { return write("cgroup.procs", getpid()); }

 private:
  bool write(const char* file, std::int64_t value) const {
    std::ofstream out(folder_ / file);
    out << value << std::flush;
    return out.good();
  }
  fs::path folder_;
};

std::vector<std::int32_t> generate(const fs::path& folder, const io::LoadOptions& load) {
  const auto model = models::LanguageModel::open(folder, {}, load);
  Pool pool(2);
  infer::Engine engine(model, pool, {.context = 16});
  std::vector<std::int32_t> out;
  engine.generate(std::vector<std::int32_t>{1, 2, 3}, 4, {}, [&](std::int32_t id) { return out.push_back(id), true; });
  return out;
}

/// Pushes a file out of the page cache, so that its pages are charged to the process that reads them next.
void evict(const fs::path& file) {
  const int fd = ::open(file.c_str(), O_RDONLY);
  ASSERT_GE(fd, 0);
  fsync(fd);
  posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
  ::close(fd);
}

/// A row of /proc/self/status, in bytes.
std::int64_t status(const std::string& name) {
  std::ifstream in("/proc/self/status");
  for (std::string line; std::getline(in, line);)
    if (line.starts_with(name + ":")) return std::stoll(line.substr(name.size() + 1)) * 1024;
  return 0;
}

class LargerThanMemory : public testing::TestWithParam<io::LoadOptions> {};

TEST_P(LargerThanMemory, generates) {
  const io::TempFolder temp;
  io::ModelConfig c;
  c.layers = 8, c.width = 512, c.heads = 8, c.vocab = 8192, c.context = 64;
  models::resolve(c);
  models::LanguageModel::create(c, 5, false).save(temp.path());
  const auto want = generate(temp.path(), {});
  ASSERT_EQ(want.size(), 4u);
  const auto file = temp / "model.safetensors";
  const auto model_bytes = static_cast<double>(fs::file_size(file));
  ASSERT_GT(model_bytes, 1.5 * static_cast<double>(kLimit));
  evict(file);

  MemoryCgroup group;
  const fs::path result = temp / "result";
  const pid_t child = fork();
  if (child == 0) {
    if (group ? !group.join() : [] {
          const rlimit r{kLimit, kLimit};
          return setrlimit(RLIMIT_DATA, &r) != 0;
        }())
      _exit(3);
    try {
      std::ofstream out(result);
      const auto before = status("VmRSS");
      for (auto id : generate(temp.path(), GetParam())) out << id << ' ';
      [[maybe_unused]] const auto grown = status("VmHWM") - before;
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
      if (GetParam().ram > 0 && grown > GetParam().ram + static_cast<std::int64_t>(0.15 * model_bytes)) {
        std::fprintf(stderr, "%lld bytes of memory were added\n", static_cast<long long>(grown));
        _exit(5);
      }
#endif
    } catch (const std::exception& e) {
      std::fprintf(stderr, "%s\n", e.what());
      _exit(4);
    }
    _exit(0);
  }
  int status = 0;
  waitpid(child, &status, 0);
  ASSERT_TRUE(WIFEXITED(status)) << "killed by signal " << WTERMSIG(status);
  ASSERT_EQ(WEXITSTATUS(status), 0);
  std::vector<std::int32_t> got;
  std::ifstream in(result);
  for (std::int32_t id; in >> id;) got.push_back(id);
  EXPECT_EQ(got, want);
}

INSTANTIATE_TEST_SUITE_P(Ways, LargerThanMemory,
                         testing::Values(io::LoadOptions{}, io::LoadOptions{io::LoadMode::automatic, kLimit * 2 / 3}),
                         [](const auto& load) { return load.param.ram > 0 ? "streamed" : "mapped"; });

}  // namespace
}  // namespace hpcdl
