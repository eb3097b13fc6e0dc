// Loading a model of the size of GPT-2 124M (498 MB): mapped against read() into fresh memory, warm and cold.
// "Loaded" means that one value of every 4 KiB page has been used.

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <memory>
#include <numeric>

#include "bench/rounds.h"
#include "hpcdl/core/buffer.h"
#include "hpcdl/core/rng.h"
#include "hpcdl/io/safetensors.h"
#include "hpcdl/io/safetensors_writer.h"
#include "hpcdl/io/temp_folder.h"

using namespace hpcdl;
namespace fs = std::filesystem;

namespace {

constexpr std::int64_t kTensors = 124, kElements = 1'003'520;  // 124 x 4 MB

void write_model(const fs::path& path) {
  std::vector<io::NamedSpec> specs;
  for (std::int64_t i = 0; i < kTensors; ++i) specs.push_back({fmt::format("layers.{}", i), {{kElements}, DType::f32}});
  io::SafeTensorsWriter writer(path, specs);
  OwnedTensor t(specs[0].spec);
  for (std::int64_t i = 0; i < kElements; ++i) t.tensor.ptr<float>()[i] = Rng{1, 1}.uniform(static_cast<std::uint64_t>(i));
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
  for (ssize_t n; (n = read(fd, to + (stride ? 0 : at), stride ? static_cast<std::size_t>(stride) : std::size_t{1} << 30)) > 0;) at += n;
  close(fd);
  touch(to, stride ? stride : at);
}

void read_fresh(const fs::path& path) {
  const std::unique_ptr<char, decltype(&std::free)> memory(static_cast<char*>(std::malloc(fs::file_size(path))), &std::free);
  read_into(memory.get(), 0, path);
}

}  // namespace

int main() {
  const io::TempFolder temp;
  const auto path = temp / "model.safetensors";
  write_model(path);
  const auto bytes = static_cast<double>(fs::file_size(path));
  const io::MappedFile file(path);
  const auto evict = [&] { file.evict(); };

  auto warm = bench::interleave({{"mapped", [&] { mapped(path, false); }}, {"read", [&] { read_fresh(path); }}}, 7, 0.1);
  bench::emit("load.warm", {{"mapped_ms", bench::spread(warm["mapped"], 1e3, "")},
                            {"read_into_fresh_memory_ms", bench::spread(warm["read"], 1e3, "")},
                            {"ratio", bench::ratio(warm["read"], warm["mapped"])}});

  // Each call is cold: the side evicts before it starts, and eviction is timed by itself and taken off.
  std::vector<char> reused(std::size_t{8} << 20);
  std::map<std::string, std::vector<double>> cold;
  for (int round = 0; round < 7; ++round) {
    const auto time = [&](const char* name, auto&& f) {
      evict();
      const double start = bench::now();
      f();
      cold[name].push_back(bench::now() - start);
    };
    time("mapped", [&] { mapped(path, false); });
    time("prefetched", [&] { mapped(path, true); });
    time("read", [&] { read_into(reused.data(), static_cast<std::int64_t>(reused.size()), path); });
  }
  const auto speed = [&](const char* name) {
    std::vector<double> v = cold[name];
    for (auto& s : v) s = bytes / s * 1e-9;
    return bench::spread(v, 1, "");
  };
  bench::emit("load.cold", {{"mapped_GBps", speed("mapped")}, {"mapped_prefetched_GBps", speed("prefetched")},
                            {"read_into_reused_buffer_GBps", speed("read")},
                            {"prefetched_over_read", bench::ratio(cold["read"], cold["prefetched"])}});
}
