// Loading a model of the size of GPT-2 124M (498 MB): mapped against read() into fresh memory, warm and cold.
// "Loaded" means that one value of every 4 KiB page has been used.

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <numeric>

#include "bench/emit.h"
#include "hpcdl/buffer.h"
#include "hpcdl/io/safetensors.h"
#include "hpcdl/io/safetensors_writer.h"
#include "hpcdl/io/temp_folder.h"
#include "hpcdl/rng.h"
#include "tools/compare/protocol.h"

using namespace hpcdl;
namespace compare = hpcdl::lab::compare;
namespace fs = std::filesystem;

namespace {

constexpr std::int64_t kTensors = 124, kElements = 1'003'520;  // 124 x 4 MB

void write_model(const fs::path& path) {
  std::vector<io::NamedSpec> specs;
  for (std::int64_t i = 0; i < kTensors; ++i) specs.push_back({fmt::format("layers.{}", i), {{kElements}, DType::f32}});
  io::SafeTensorsWriter writer(path, specs);
  OwnedTensor t(specs[0].spec);
  for (std::int64_t i = 0; i < kElements; ++i)
    t.tensor.ptr<float>()[i] = Rng{1, 1}.uniform(static_cast<std::uint64_t>(i));
  for (const auto& s : specs) writer.write(s.name, t.tensor);
  writer.commit();
}

volatile unsigned g_sink = 0;

void touch(const void* data, std::int64_t bytes) {
  const auto* p = static_cast<const unsigned char*>(data);
  unsigned sum = 0;
  for (std::int64_t i = 0; i < bytes; i += 4096) sum += p[i];
  g_sink = g_sink + sum;
}

void mapped(const fs::path& path, bool ahead) {
  const auto file = io::SafeTensors::open(path);
  io::Prefetch reading;
  if (ahead) reading = file.file().prefetch();
  for (const auto& t : file.tensors()) touch(file.view(t).data(), t.spec.bytes());
}

void read_into(char* to, std::int64_t stride, const fs::path& path) {
  const int fd = open(path.c_str(), O_RDONLY);
  std::int64_t at = 0;
  for (ssize_t n;
       (n = read(fd, to + (stride ? 0 : at), stride ? static_cast<std::size_t>(stride) : std::size_t{1} << 30)) > 0;)
    at += n;
  close(fd);
  touch(to, stride ? stride : at);
}

void read_fresh(const fs::path& path) {
  const std::unique_ptr<char, decltype(&std::free)> memory(static_cast<char*>(std::malloc(fs::file_size(path))),
                                                           &std::free);
  read_into(memory.get(), 0, path);
}

/// Cold means that the page cache holds nothing of the file.
class Evicting : public compare::HostEnvironment {
 public:
  Evicting(Pool& pool, const fs::path& path) : HostEnvironment(pool), file_(path) {}
  void flush() override { file_.evict(); }
  std::string flush_method() const override { return "file evicted from the page cache before each call"; }

 private:
  io::MappedFile file_;
};

}  // namespace

int main() {
  const io::TempFolder temp;
  const auto path = temp / "model.safetensors";
  write_model(path);
  const auto bytes = static_cast<double>(fs::file_size(path));
  Pool pool(1);
  Evicting host(pool, path);

  const auto warm = compare::run({{"mapped", [&] { mapped(path, false); }}, {"read", [&] { read_fresh(path); }}}, host,
                                 {.rounds = 7, .target = 0.1, .limit = 60});
  bench::emit("load.warm", {{"mapped_ms", compare::to_json(warm.side("mapped").time(), 1e3)},
                            {"read_into_fresh_memory_ms", compare::to_json(warm.side("read").time(), 1e3)},
                            {"ratio", compare::to_json(warm.ratio("read", "mapped"))}});

  std::vector<char> reused(std::size_t{8} << 20);
  const auto cold =
      compare::run({{"mapped", [&] { mapped(path, false); }},
                    {"prefetched", [&] { mapped(path, true); }},
                    {"read", [&] { read_into(reused.data(), static_cast<std::int64_t>(reused.size()), path); }}},
                   host, {.cache = compare::Cache::flushed, .rounds = 7, .target = 0.1, .limit = 60});
  const auto speed = [&](const char* name) {
    std::vector<double> v = cold.side(name).seconds;
    for (auto& s : v) s = bytes / s * 1e-9;
    return compare::to_json(compare::spread(v));
  };
  bench::emit("load.cold", {{"mapped_GBps", speed("mapped")},
                            {"mapped_prefetched_GBps", speed("prefetched")},
                            {"read_into_reused_buffer_GBps", speed("read")},
                            {"prefetched_over_read", compare::to_json(cold.ratio("read", "prefetched"))}});
}
